//! The header that the backend gets in turn (`--send-proxy`).

use peername_proto::{Endpoints, Header, Transport, V2Writer, kind, write_v1, write_v1_unknown};

use crate::config::SendProxy;

/// Writes what `header` said in the version asked for. Version 2 carries the TLVs on; a header that
/// speaks for nobody stays one.
///
/// With `hops`, so many proxies that connect to a header's destination were there before this one, and
/// version 2 says that there is one more: else they could send a connection round for ever.
pub(crate) fn write(header: &Header<'_>, version: SendProxy, hops: Option<u8>) -> Box<[u8]> {
    let mut out = Vec::new();
    match (version, header.endpoints) {
        (
            SendProxy::V1,
            Endpoints::Inet {
                source,
                destination,
                ..
            },
        ) => {
            write_v1(&mut out, source, destination);
        }
        (SendProxy::V1, _) => write_v1_unknown(&mut out),
        (
            SendProxy::V2,
            Endpoints::Inet {
                source,
                destination,
                ..
            },
        ) => {
            // The TLVs fitted one header and so they fit this one.
            let writer = V2Writer::proxy(&mut out, Transport::Stream, source, destination);
            let _ = match hops {
                None => writer.tlvs(header.tlvs),
                Some(hops) => with_hops(writer, header, hops.saturating_add(1)),
            }
            .finish();
        }
        (SendProxy::V2, _) => {
            let _ = V2Writer::local(&mut out).finish();
        }
    }
    out.into()
}

/// Through how many proxies of this kind the header came: the number at the end of the field that
/// begins with [`HOPS`].
pub(crate) fn hops(header: &Header<'_>) -> u8 {
    let fields = header.tlvs.iter().filter(|tlv| tlv.kind == EXPERIMENT);
    let counts = fields.filter_map(|tlv| match tlv.value.strip_prefix(HOPS) {
        Some([count]) => Some(*count),
        _ => None,
    });
    counts.max().unwrap_or(0)
}

fn with_hops<'v>(writer: V2Writer<'v>, header: &Header<'_>, hops: u8) -> V2Writer<'v> {
    let is_ours = |kind, value: &[u8]| kind == EXPERIMENT && value.starts_with(HOPS);
    let about_the_old = [kind::CRC32C, kind::NOOP];
    let others = header
        .tlvs
        .iter()
        .filter(|tlv| !is_ours(tlv.kind, tlv.value) && !about_the_old.contains(&tlv.kind));
    let writer = others.fold(writer, |writer, tlv| writer.tlv(tlv.kind, tlv.value));
    writer.tlv(EXPERIMENT, &[HOPS, &[hops]].concat())
}

/// The first of the types for experiments (section 2.2.8), which nobody may count on; so the value
/// says whose it is.
const EXPERIMENT: u8 = 0xf0;
const HOPS: &[u8] = b"peername-hops";

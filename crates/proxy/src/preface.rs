//! The header that the backend gets in turn (`--send-proxy`).

use peername_proto::{
    Endpoints, Header, Tlv, Transport, V2Writer, WriteError, kind, write_v1, write_v1_unknown,
};

use crate::config::SendProxy;

/// Writes what `header` said in the version asked for. Version 2 carries the TLVs on, with a checksum
/// where there was one; a header that speaks for nobody stays one.
///
/// With `hops`, so many proxies that connect to a header's destination were there before this one, and
/// version 2 says that there is one more: else they could send a connection round for ever.
///
/// # Errors
///
/// [`WriteError::TooLong`]: with that count there is more than one header can hold. Nothing may then be
/// sent to the backend, which would take the client's first bytes for the header.
pub(crate) fn write(
    header: &Header<'_>,
    version: SendProxy,
    hops: Option<u8>,
) -> Result<Box<[u8]>, WriteError> {
    let Endpoints::Inet {
        source,
        destination,
        ..
    } = header.endpoints
    else {
        return Ok(nobodys(version));
    };
    let mut out = Vec::new();
    match version {
        SendProxy::V1 => write_v1(&mut out, source, destination),
        SendProxy::V2 => {
            let writer = V2Writer::proxy(&mut out, Transport::Stream, source, destination);
            with_fields(writer, header, hops).finish()?;
        }
    }
    Ok(out.into())
}

/// A header that speaks for nobody.
pub(crate) fn nobodys(version: SendProxy) -> Box<[u8]> {
    let mut out = Vec::new();
    match version {
        SendProxy::V1 => write_v1_unknown(&mut out),
        SendProxy::V2 => {
            // Nothing is in it that could be wrong.
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

/// Whether this is the field that [`hops`] reads.
pub(crate) fn is_count(tlv: Tlv<'_>) -> bool {
    tlv.kind == EXPERIMENT && tlv.value.starts_with(HOPS)
}

/// Padding and checksum were about the header that came.
fn with_fields<'v>(writer: V2Writer<'v>, header: &Header<'_>, hops: Option<u8>) -> V2Writer<'v> {
    let fields = header
        .tlvs
        .iter()
        .filter(|tlv| !matches!(tlv.kind, kind::CRC32C | kind::NOOP))
        .filter(|tlv| hops.is_none() || !is_count(*tlv));
    let mut writer = fields.fold(writer, |writer, tlv| writer.tlv(tlv.kind, tlv.value));
    if let Some(hops) = hops {
        writer = writer.tlv(EXPERIMENT, &[HOPS, &[hops.saturating_add(1)]].concat());
    }
    match header.tlvs.get(kind::CRC32C) {
        Some(_) => writer.crc32c(),
        None => writer,
    }
}

/// The first of the types for experiments (section 2.2.8), which nobody may count on; so the value
/// says whose it is.
const EXPERIMENT: u8 = 0xf0;
const HOPS: &[u8] = b"peername-hops";

#[cfg(test)]
mod tests {
    use peername_proto::{Carrier, Parsed, parse};

    use super::*;

    fn header(fill: impl FnOnce(V2Writer<'_>) -> V2Writer<'_>) -> Vec<u8> {
        let [source, destination] = ["192.0.2.1:1000", "198.51.100.1:443"].map(|text| {
            let addr: std::net::SocketAddr = text.parse().unwrap();
            addr
        });
        let mut out = Vec::new();
        let writer = V2Writer::proxy(&mut out, Transport::Stream, source, destination);
        fill(writer).finish().unwrap();
        out
    }

    fn read(bytes: &[u8]) -> Header<'_> {
        match parse(bytes, Carrier::Stream).unwrap() {
            Parsed::Complete(header) => header,
            Parsed::NeedMore(_) => panic!("half a header"),
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error_and_never_nothing() {
        let count = 3 + HOPS.len() + 1;
        for room in 0..2 * count {
            let value = vec![0; usize::from(u16::MAX) - ADDRESSES - 3 - room];
            let came = header(|writer| writer.tlv(0xea, &value));
            let goes = |hops| write(&read(&came), SendProxy::V2, hops);
            assert_eq!(goes(None).as_deref(), Ok(came.as_slice()));
            match goes(Some(0)) {
                Ok(written) => {
                    assert!(room >= count, "{room}");
                    assert_eq!(hops(&read(&written)), 1);
                }
                Err(error) => {
                    assert!(room < count, "{room}");
                    let most = usize::from(u16::MAX);
                    assert_eq!(error, WriteError::TooLong(most - room + count));
                }
            }
        }
    }

    /// It is checked whenever a header is read.
    #[test]
    fn a_checksum_goes_on_as_one_of_the_new_header() {
        let came = header(|writer| writer.crc32c().tlv(0xea, b"x"));
        for (hops, fields) in [
            (None, [0xea, kind::CRC32C].as_slice()),
            (Some(0), &[0xea, EXPERIMENT, kind::CRC32C]),
        ] {
            let written = write(&read(&came), SendProxy::V2, hops).unwrap();
            let kinds: Vec<_> = read(&written).tlvs.iter().map(|tlv| tlv.kind).collect();
            assert_eq!(kinds, fields);
        }
    }

    const ADDRESSES: usize = 12;
}

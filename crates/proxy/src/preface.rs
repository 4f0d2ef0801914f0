//! The header that the backend gets in turn (`--send-proxy`).

use peername_proto::{Endpoints, Header, Transport, V2Writer, write_v1, write_v1_unknown};

use crate::config::SendProxy;

/// Writes what `header` said in the version asked for. Version 2 carries the TLVs on; a header that
/// speaks for nobody stays one.
pub(crate) fn write(header: &Header<'_>, version: SendProxy) -> Box<[u8]> {
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
            let _ = V2Writer::proxy(&mut out, Transport::Stream, source, destination)
                .tlvs(header.tlvs)
                .finish();
        }
        (SendProxy::V2, _) => {
            let _ = V2Writer::local(&mut out).finish();
        }
    }
    out.into()
}

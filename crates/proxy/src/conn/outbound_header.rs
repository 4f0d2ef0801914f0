//! Writes the header for the backend (`--send-proxy`).

use peername_proto::{
    Endpoints, Header, Transport, V2Writer, WriteError, kind, write_v1, write_v1_unknown,
};
use peername_server::hop_count;

use crate::config::SendProxy;

/// Writes `header` again in the requested version. Version 2 keeps the TLVs, and has a checksum if `header` has one.
/// LOCAL and UNKNOWN stay what they are.
///
/// `hops` is the hop count of `header`; version 2 gets a hop count one higher. `None` where headers may not name
/// destinations: hops are not counted then.
///
/// # Errors
///
/// [`WriteError::TooLong`]: the TLVs and the hop count don't fit. The caller must send nothing to the backend then: the
/// backend would parse the client's first bytes as the header.
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
        return Ok(local_header(version));
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

/// A header without a client: LOCAL in version 2, UNKNOWN in version 1.
pub(crate) fn local_header(version: SendProxy) -> Box<[u8]> {
    let mut out = Vec::new();
    match version {
        SendProxy::V1 => write_v1_unknown(&mut out),
        SendProxy::V2 => {
            // It has no variable part, so writing it cannot fail.
            let _ = V2Writer::local(&mut out).finish();
        }
    }
    out.into()
}

/// Adds the TLVs. Padding and checksum belonged to the received header.
fn with_fields<'v>(writer: V2Writer<'v>, header: &Header<'_>, hops: Option<u8>) -> V2Writer<'v> {
    let fields = header
        .tlvs
        .iter()
        .filter(|tlv| !matches!(tlv.kind, kind::CRC32C | kind::NOOP))
        .filter(|tlv| hops.is_none() || !hop_count::is_hop_count(*tlv));
    let mut writer = fields.fold(writer, |writer, tlv| writer.tlv(tlv.kind, tlv.value));
    if let Some(hops) = hops {
        writer = writer.tlv(
            hop_count::TLV_TYPE,
            &hop_count::value(hops.saturating_add(1)),
        );
    }
    match header.tlvs.get(kind::CRC32C) {
        Some(_) => writer.crc32c(),
        None => writer,
    }
}

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
    fn header_that_does_not_fit_is_an_error() {
        let count = 3 + hop_count::value(0).len();
        for room in 0..2 * count {
            let value = vec![0; usize::from(u16::MAX) - ADDRESSES - 3 - room];
            let came = header(|writer| writer.tlv(0xea, &value));
            let goes = |hops| write(&read(&came), SendProxy::V2, hops);
            assert_eq!(goes(None).as_deref(), Ok(came.as_slice()));
            match goes(Some(0)) {
                Ok(written) => {
                    assert!(room >= count, "{room}");
                    assert_eq!(hop_count::read(&read(&written)), 1);
                }
                Err(error) => {
                    assert!(room < count, "{room}");
                    let most = usize::from(u16::MAX);
                    assert_eq!(error, WriteError::TooLong(most - room + count));
                }
            }
        }
    }

    /// Reading a header verifies its checksum.
    #[test]
    fn checksum_is_computed_anew() {
        let came = header(|writer| writer.crc32c().tlv(0xea, b"x"));
        for (hops, fields) in [
            (None, [0xea, kind::CRC32C].as_slice()),
            (Some(0), &[0xea, hop_count::TLV_TYPE, kind::CRC32C]),
        ] {
            let written = write(&read(&came), SendProxy::V2, hops).unwrap();
            let kinds: Vec<_> = read(&written).tlvs.iter().map(|tlv| tlv.kind).collect();
            assert_eq!(kinds, fields);
        }
    }

    const ADDRESSES: usize = 12;
}

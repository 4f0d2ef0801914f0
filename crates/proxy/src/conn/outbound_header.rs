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
            with_tlvs(writer, header, hops).finish()?;
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
            // A LOCAL header has no variable part, so its length always fits.
            let _ = V2Writer::local(&mut out).finish();
        }
    }
    out.into()
}

/// Adds the TLVs of `header`, except padding and checksum, which belonged to the received bytes.
fn with_tlvs<'v>(writer: V2Writer<'v>, header: &Header<'_>, hops: Option<u8>) -> V2Writer<'v> {
    let mut writer = header
        .tlvs
        .iter()
        .filter(|tlv| !matches!(tlv.kind, kind::CRC32C | kind::NOOP))
        .filter(|tlv| hops.is_none() || !hop_count::is_hop_count(*tlv))
        .fold(writer, |writer, tlv| writer.tlv(tlv.kind, tlv.value));
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
        let max_len = usize::from(u16::MAX);
        let hop_count_len = TLV_HEADER_BYTES + hop_count::value(0).len();
        for free in 0..2 * hop_count_len {
            let value = vec![0; max_len - ADDRESS_BYTES - TLV_HEADER_BYTES - free];
            let received = header(|writer| writer.tlv(0xea, &value));
            let write_again = |hops| write(&read(&received), SendProxy::V2, hops);
            assert_eq!(write_again(None).as_deref(), Ok(received.as_slice()));
            match write_again(Some(0)) {
                Ok(written) => {
                    assert!(free >= hop_count_len, "{free}");
                    assert_eq!(hop_count::read(&read(&written)), 1);
                }
                Err(error) => {
                    assert!(free < hop_count_len, "{free}");
                    assert_eq!(error, WriteError::TooLong(max_len - free + hop_count_len));
                }
            }
        }
    }

    /// Reading a header verifies its checksum.
    #[test]
    fn checksum_is_computed_anew() {
        let received = header(|writer| writer.crc32c().tlv(0xea, b"x"));
        for (hops, expected_kinds) in [
            (None, [0xea, kind::CRC32C].as_slice()),
            (Some(0), &[0xea, hop_count::TLV_TYPE, kind::CRC32C]),
        ] {
            let written = write(&read(&received), SendProxy::V2, hops).unwrap();
            let kinds: Vec<_> = read(&written).tlvs.iter().map(|tlv| tlv.kind).collect();
            assert_eq!(kinds, expected_kinds);
        }
    }

    /// Length of the addresses of a TCP over IPv4 header.
    const ADDRESS_BYTES: usize = 12;
    /// Length of the type and length in front of a TLV's value.
    const TLV_HEADER_BYTES: usize = 3;
}

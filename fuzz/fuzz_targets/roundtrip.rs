//! An encoded header is accepted, and decodes to the input.
#![no_main]

use std::net::{IpAddr, SocketAddr};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use peername_proto::{
    Carrier, Command, Endpoints, Header, Parsed, Spp, Tlv, Transport, UnixName, V2Writer,
    canonical, kind, parse, write_spp, write_v1,
};

#[derive(Arbitrary, Debug)]
struct Input {
    before: Vec<u8>,
    is_datagram: bool,
    endpoints: InputEndpoints,
    tlvs: Vec<InputTlv>,
    payload: Vec<u8>,
}

#[derive(Arbitrary, Debug)]
enum InputEndpoints {
    Inet(SocketAddr, SocketAddr),
    Unix(Box<[u8; 108]>, Box<[u8; 108]>),
    Local,
    Unspec,
}

#[derive(Arbitrary, Debug)]
enum InputTlv {
    Tlv(u8, Vec<u8>),
    /// A value of this many bytes, to reach the limits.
    Large(u8, u16),
    Ssl(u8, u32, Vec<(u8, Vec<u8>)>),
    Checksum,
}

fuzz_target!(|input: Input| {
    let mut out = input.before.clone();
    match input.write(&mut out) {
        Ok(len) => {
            assert_eq!(out.len(), input.before.len() + len);
            out.extend(&input.payload);
            let header = complete(&out[input.before.len()..]);
            assert_eq!(header.len, len);
            input.compare(&header);
        }
        Err(_) => assert_eq!(out, input.before),
    }
    if let InputEndpoints::Inet(source, destination) = input.endpoints {
        check_v1(source, destination);
        check_spp(source, destination);
    }
});

impl Input {
    fn write(&self, out: &mut Vec<u8>) -> Result<usize, peername_proto::WriteError> {
        let writer = match &self.endpoints {
            InputEndpoints::Inet(source, destination) => {
                V2Writer::proxy(out, self.transport(), *source, *destination)
            }
            InputEndpoints::Unix(source, destination) => V2Writer::unix(
                out,
                self.transport(),
                UnixName(source),
                UnixName(destination),
            ),
            InputEndpoints::Local => V2Writer::local(out),
            InputEndpoints::Unspec => V2Writer::unspec(out),
        };
        self.tlvs
            .iter()
            .fold(writer, |writer, tlv| tlv.write(writer))
            .finish()
    }

    fn transport(&self) -> Transport {
        if self.is_datagram {
            Transport::Datagram
        } else {
            Transport::Stream
        }
    }

    fn compare(&self, header: &Header<'_>) {
        let transport = self.transport();
        match &self.endpoints {
            InputEndpoints::Inet(source, destination) => {
                let (source, destination) = one_family(*source, *destination);
                assert_eq!(
                    header.endpoints,
                    Endpoints::Inet {
                        transport,
                        source,
                        destination
                    }
                );
            }
            InputEndpoints::Unix(source, destination) => {
                let (source, destination) = (UnixName(source), UnixName(destination));
                assert_eq!(
                    header.endpoints,
                    Endpoints::Unix {
                        transport,
                        source,
                        destination
                    }
                );
            }
            InputEndpoints::Local | InputEndpoints::Unspec => {
                assert_eq!(
                    header.command == Command::Local,
                    matches!(self.endpoints, InputEndpoints::Local)
                );
                assert_eq!(
                    (header.endpoints, header.tlvs.is_empty()),
                    (Endpoints::Real, true)
                );
                return;
            }
        }
        let mut decoded = header.tlvs.iter();
        let mut has_checksum = false;
        for tlv in &self.tlvs {
            if !matches!(tlv, InputTlv::Checksum) {
                tlv.compare(decoded.next().expect("as many TLVs"));
            } else if !has_checksum {
                has_checksum = true;
                assert_eq!(decoded.next().expect("a checksum").kind, kind::CRC32C);
            }
        }
        assert_eq!(decoded.next(), None);
    }
}

impl InputTlv {
    fn write<'v>(&self, writer: V2Writer<'v>) -> V2Writer<'v> {
        match self {
            Self::Tlv(kind, value) => writer.tlv(*kind, value),
            Self::Large(kind, length) => writer.tlv(*kind, &vec![b'x'; usize::from(*length)]),
            Self::Ssl(client, verify, details) => {
                let details: Vec<_> = details
                    .iter()
                    .map(|(kind, value)| Tlv { kind: *kind, value })
                    .collect();
                writer.ssl(*client, *verify, &details)
            }
            Self::Checksum => writer.crc32c(),
        }
    }

    fn compare(&self, decoded: Tlv<'_>) {
        match self {
            Self::Tlv(kind, value) => assert_eq!(decoded, Tlv { kind: *kind, value }),
            Self::Large(kind, length) => {
                assert_eq!(
                    (decoded.kind, decoded.value.len()),
                    (*kind, usize::from(*length))
                );
            }
            Self::Ssl(client, verify, details) => {
                assert_eq!(decoded.kind, kind::SSL);
                let ssl = peername_proto::Ssl::read(decoded.value).expect("a valid structure");
                assert_eq!((ssl.client, ssl.verify), (*client, *verify));
                assert!(
                    ssl.tlvs.iter().map(|tlv| (tlv.kind, tlv.value)).eq(details
                        .iter()
                        .map(|(kind, value)| (*kind, value.as_slice())))
                );
            }
            Self::Checksum => unreachable!("compared by its caller"),
        }
    }
}

fn check_v1(source: SocketAddr, destination: SocketAddr) {
    let mut line = Vec::new();
    write_v1(&mut line, source, destination);
    let header = complete(&line);
    let (source, destination) = one_family(source, destination);
    assert_eq!(
        (header.source(), header.destination()),
        (Some(source), Some(destination))
    );
}

fn check_spp(client: SocketAddr, proxy: SocketAddr) {
    let mut datagram = Vec::new();
    write_spp(&mut datagram, Spp { client, proxy });
    let header = Spp::parse(&datagram).expect("the written header");
    assert_eq!(header.client, canonical(client));
    assert_eq!(header.proxy, canonical(proxy));
}

fn complete(bytes: &[u8]) -> Header<'_> {
    match parse(bytes, Carrier::Stream) {
        Ok(Parsed::Complete(header)) => header,
        other => panic!("{other:?}"),
    }
}

/// The endpoints as a header preserves them: an IPv4 address is mapped if the other one is IPv6; flow label and scope are
/// lost.
fn one_family(source: SocketAddr, destination: SocketAddr) -> (SocketAddr, SocketAddr) {
    let is_mixed = source.is_ipv4() != destination.is_ipv4();
    let to_family = |end: SocketAddr| match end.ip() {
        IpAddr::V4(v4) if is_mixed => SocketAddr::new(v4.to_ipv6_mapped().into(), end.port()),
        ip => SocketAddr::new(ip, end.port()),
    };
    (to_family(source), to_family(destination))
}

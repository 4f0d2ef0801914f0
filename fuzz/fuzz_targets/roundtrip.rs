//! An encoded header is accepted, and decodes to the input.
#![no_main]

use std::net::{IpAddr, SocketAddr};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use peername_proto::{
    Carrier, Command, Endpoints, Header, Parsed, Spp, Tlv, Transport, UnixName, V2Writer, kind,
    parse, write_spp, write_v1,
};

#[derive(Arbitrary, Debug)]
struct Input {
    before: Vec<u8>,
    datagram: bool,
    ends: Ends,
    fields: Vec<Field>,
    payload: Vec<u8>,
}

#[derive(Arbitrary, Debug)]
enum Ends {
    Inet(SocketAddr, SocketAddr),
    Unix(Box<[u8; 108]>, Box<[u8; 108]>),
    Local,
    Unspec,
}

#[derive(Arbitrary, Debug)]
enum Field {
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
    if let Ends::Inet(source, destination) = input.ends {
        check_v1(source, destination);
        check_spp(source, destination);
    }
});

impl Input {
    fn write(&self, out: &mut Vec<u8>) -> Result<usize, peername_proto::WriteError> {
        let writer = match &self.ends {
            Ends::Inet(source, destination) => {
                V2Writer::proxy(out, self.transport(), *source, *destination)
            }
            Ends::Unix(source, destination) => V2Writer::unix(
                out,
                self.transport(),
                UnixName(source),
                UnixName(destination),
            ),
            Ends::Local => V2Writer::local(out),
            Ends::Unspec => V2Writer::unspec(out),
        };
        self.fields
            .iter()
            .fold(writer, |writer, field| field.write(writer))
            .finish()
    }

    fn transport(&self) -> Transport {
        if self.datagram {
            Transport::Datagram
        } else {
            Transport::Stream
        }
    }

    fn compare(&self, header: &Header<'_>) {
        let transport = self.transport();
        match &self.ends {
            Ends::Inet(source, destination) => {
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
            Ends::Unix(source, destination) => {
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
            Ends::Local | Ends::Unspec => {
                assert_eq!(
                    header.command == Command::Local,
                    matches!(self.ends, Ends::Local)
                );
                assert_eq!(
                    (header.endpoints, header.tlvs.is_empty()),
                    (Endpoints::Real, true)
                );
                return;
            }
        }
        let mut got = header.tlvs.iter();
        let mut checksums = 0;
        for field in &self.fields {
            if !matches!(field, Field::Checksum) {
                field.compare(got.next().expect("as many fields"));
            } else if checksums == 0 {
                checksums = 1;
                assert_eq!(got.next().expect("a checksum").kind, kind::CRC32C);
            }
        }
        assert_eq!(got.next(), None);
    }
}

impl Field {
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

    fn compare(&self, got: Tlv<'_>) {
        match self {
            Self::Tlv(kind, value) => assert_eq!(got, Tlv { kind: *kind, value }),
            Self::Large(kind, length) => {
                assert_eq!((got.kind, got.value.len()), (*kind, usize::from(*length)));
            }
            Self::Ssl(client, verify, details) => {
                assert_eq!(got.kind, kind::SSL);
                let ssl = peername_proto::Ssl::read(got.value).expect("a valid structure");
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
    let header = Spp::parse(&datagram).expect("what was written");
    assert_eq!(header.client, plain(client, |ip| ip.to_canonical()));
    assert_eq!(header.proxy, plain(proxy, |ip| ip.to_canonical()));
}

fn complete(bytes: &[u8]) -> Header<'_> {
    match parse(bytes, Carrier::Stream) {
        Ok(Parsed::Complete(header)) => header,
        other => panic!("{other:?}"),
    }
}

/// What the encoding preserves of a pair: an IPv4 address is mapped if the other one is IPv6; flow label and scope are
/// lost.
fn one_family(source: SocketAddr, destination: SocketAddr) -> (SocketAddr, SocketAddr) {
    let same = source.is_ipv4() == destination.is_ipv4();
    let fit = |ip| match ip {
        IpAddr::V4(v4) if !same => IpAddr::V6(v4.to_ipv6_mapped()),
        ip => ip,
    };
    (plain(source, fit), plain(destination, fit))
}

fn plain(address: SocketAddr, fit: impl Fn(IpAddr) -> IpAddr) -> SocketAddr {
    SocketAddr::new(fit(address.ip()), address.port())
}

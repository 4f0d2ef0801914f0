//! Reads the addresses with which a packet leaves this host, after the packet filter has translated them.
//!
//! If a transmit timestamp is requested (SOF_TIMESTAMPING_TX_SOFTWARE), the kernel returns a copy of the packet as the device
//! got it: behind every NAT rule of this network namespace. The probe has a wrong checksum, so that its receiver drops it
//! before it looks up a socket. Connection tracking does not verify checksums of packets that leave, so the addresses are
//! translated as those of the connection's next packet will be.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::net::{RecvFlags, recv};
use socket2::{Domain, Protocol, Socket, Type};

use super::set_int;
use crate::{NameCall, Result, Transport};

/// A raw socket that sends probes. It receives nothing, so it costs other packets nothing.
#[derive(Debug)]
pub struct EgressProbe {
    socket: Socket,
    /// The payload of the last probe, by which its copy is recognized.
    serial: Cell<u64>,
}

/// The addresses of a packet as it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TranslatedAddresses {
    /// The source that the receiver sees.
    pub source: SocketAddr,
    /// The destination.
    pub destination: SocketAddr,
}

impl EgressProbe {
    /// Opens a socket for destinations of this family. Needs CAP_NET_RAW.
    ///
    /// # Errors
    ///
    /// EPERM without the capability; EAFNOSUPPORT without IPv6; EMFILE, ENFILE or ENOMEM.
    pub fn open(to: IpAddr, mark: Option<u32>) -> Result<Self> {
        let domain = match to {
            IpAddr::V4(_) => Domain::IPV4,
            IpAddr::V6(_) => Domain::IPV6,
        };
        let kind = Type::RAW.nonblocking().cloexec();
        // With this protocol, packets are sent with their own IP header, and none is received (raw(7)).
        let protocol = Protocol::from(libc::IPPROTO_RAW);
        let socket = Socket::new(domain, kind, Some(protocol)).call("socket(SOCK_RAW)")?;
        if let Some(mark) = mark {
            super::set_mark(&socket, mark)?;
        }
        let requested = libc::SOF_TIMESTAMPING_TX_SOFTWARE.cast_signed();
        let fd = socket.as_fd();
        set_int(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, requested)
            .call("setsockopt(SO_TIMESTAMPING)")?;
        Ok(Self {
            socket,
            serial: Cell::new(0),
        })
    }

    /// Sends a packet between two addresses of the socket's family, and returns the addresses with which it left. `None` where
    /// the device returns no copy, or not at once.
    ///
    /// # Errors
    ///
    /// EPERM where the packet filter drops it; ENETUNREACH and EHOSTUNREACH; else those of sendto(2) and recv(2).
    pub fn send(
        &self,
        transport: Transport,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Result<Option<TranslatedAddresses>> {
        // Clears an error of an earlier packet, which sendto(2) would return.
        let _ = self.socket.take_error();
        let serial = self.serial.get().wrapping_add(1);
        self.serial.set(serial);
        let packet = packet(transport, from, to, serial);
        // A raw socket has no ports; for IPv6 the field has to be 0.
        let destination = SocketAddr::new(to.ip(), 0);
        self.socket
            .send_to(&packet, &destination.into())
            .call("sendto(SOCK_RAW)")?;
        let mut copy = [0; 256];
        loop {
            let len = match self.read_copy(&mut copy) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error).call("recv(MSG_ERRQUEUE)"),
            };
            // A device may have put a header in front.
            let emitted = copy.get(len.saturating_sub(packet.len())..len);
            // Else this is a late copy of an earlier probe.
            if let Some(emitted) = emitted.filter(|packet| packet.ends_with(&serial.to_be_bytes()))
            {
                return Ok(parse(emitted, to));
            }
        }
    }

    fn read_copy(&self, copy: &mut [u8]) -> io::Result<usize> {
        let (len, _) = recv(
            &self.socket,
            copy,
            RecvFlags::ERRQUEUE | RecvFlags::DONTWAIT,
        )?;
        Ok(len)
    }
}

/// An IP packet with a UDP datagram or a TCP SYN, which has a wrong checksum and `serial` as its payload.
fn packet(transport: Transport, from: SocketAddr, to: SocketAddr, serial: u64) -> Vec<u8> {
    let serial = serial.to_be_bytes();
    let (protocol, segment) = match transport {
        Transport::Udp => (UDP, udp_datagram(from, to, serial)),
        Transport::Tcp => (TCP, tcp_segment(from, to, serial)),
    };
    let len = u16::try_from(segment.len()).unwrap_or_default();
    let mut packet = match to {
        SocketAddr::V4(_) => {
            let [high, low] = (V4_HEADER_LEN + len).to_be_bytes();
            // The kernel fills in the identification and the header's checksum.
            vec![V4_START, 0, high, low, 0, 0, DF, 0, TTL, protocol, 0, 0]
        }
        SocketAddr::V6(_) => {
            let [high, low] = len.to_be_bytes();
            vec![V6_START, 0, 0, 0, high, low, protocol, TTL]
        }
    };
    packet.extend(octets(from.ip()));
    packet.extend(octets(to.ip()));
    packet.extend(segment);
    packet
}

fn udp_datagram(from: SocketAddr, to: SocketAddr, payload: [u8; 8]) -> Vec<u8> {
    let mut datagram = ports(from, to);
    datagram.extend([0, 16, 0, 0]); // length, checksum
    datagram.extend(payload);
    spoil_checksum(&mut datagram, 6, UDP, from, to);
    datagram
}

fn tcp_segment(from: SocketAddr, to: SocketAddr, payload: [u8; 8]) -> Vec<u8> {
    let mut segment = ports(from, to);
    segment.extend([0; 8]); // sequence and acknowledgement number
    segment.extend([5 << 4, SYN, 0xff, 0xff, 0, 0, 0, 0]); // header length, flags, window, checksum, urgent pointer
    segment.extend(payload);
    spoil_checksum(&mut segment, 16, TCP, from, to);
    segment
}

fn ports(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    [from, to].map(|end| end.port().to_be_bytes()).concat()
}

/// Writes a checksum at offset `at` that differs from the right one, and is not 0, which stands for none.
fn spoil_checksum(segment: &mut [u8], at: usize, protocol: u8, from: SocketAddr, to: SocketAddr) {
    let len = u8::try_from(segment.len()).unwrap_or_default();
    let mut checksummed = octets(from.ip());
    checksummed.extend(octets(to.ip()));
    checksummed.extend([0, protocol, 0, len]);
    checksummed.extend(&*segment);
    let (words, _) = checksummed.as_chunks::<2>();
    let sum: u32 = words
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)))
        .sum();
    let wrong = match !fold(fold(sum)) & 0xffff {
        // The rule below would make it 0.
        1 => 2,
        right => right ^ 1,
    };
    let [.., high, low] = wrong.to_be_bytes();
    if let Some(checksum) = segment.get_mut(at..at + 2) {
        checksum.copy_from_slice(&[high, low]);
    }
}

/// Adds the carries to the lower 16 bits (one's complement, RFC 1071).
fn fold(sum: u32) -> u32 {
    (sum & 0xffff) + (sum >> 16)
}

/// The addresses in a packet of [`packet`]'s form; `None` if it has another.
fn parse(packet: &[u8], to: SocketAddr) -> Option<TranslatedAddresses> {
    let (first, addresses, ports) = match to {
        SocketAddr::V4(_) => (V4_START, packet.get(12..20)?, packet.get(20..24)?),
        SocketAddr::V6(_) => (V6_START, packet.get(8..40)?, packet.get(40..44)?),
    };
    if packet.first() != Some(&first) {
        return None;
    }
    let (source, destination) = addresses.split_at(addresses.len() / 2);
    let (source_port, destination_port) = ports.split_at(2);
    Some(TranslatedAddresses {
        source: address(source, source_port)?,
        destination: address(destination, destination_port)?,
    })
}

fn address(ip: &[u8], port: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(port.try_into().ok()?);
    let ip = match <[u8; 4]>::try_from(ip) {
        Ok(v4) => IpAddr::from(v4),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(ip).ok()?),
    };
    Some(SocketAddr::new(ip, port))
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const SYN: u8 = 2;
const TTL: u8 = 64;
/// The first byte: version 4 with a header of 5 words, and version 6.
const V4_START: u8 = 0x45;
const V6_START: u8 = 0x60;
/// Don't fragment.
const DF: u8 = 0x40;
const V4_HEADER_LEN: u16 = 20;

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;

    /// Needs CAP_NET_RAW. The receiver's next datagram is the real one, so no probe was received.
    #[test]
    fn probe_shows_both_addresses_and_is_not_received() {
        for ip in ["127.0.0.1", "::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            let receiver = UdpSocket::bind((ip, 0)).unwrap();
            receiver
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            let destination = receiver.local_addr().unwrap();
            let probe = EgressProbe::open(ip, None).unwrap();
            // Enough ports for each kind of checksum.
            for port in 1..=1000 {
                let source = SocketAddr::new(ip, port);
                for transport in [Transport::Udp, Transport::Tcp] {
                    let emitted = probe.send(transport, source, destination).unwrap();
                    assert_eq!(
                        emitted,
                        Some(TranslatedAddresses {
                            source,
                            destination
                        })
                    );
                }
            }
            let sender = UdpSocket::bind((ip, 0)).unwrap();
            sender.send_to(b"real", destination).unwrap();
            let mut buffer = [0; 8];
            assert_eq!(receiver.recv(&mut buffer).unwrap(), 4);
        }
    }
}

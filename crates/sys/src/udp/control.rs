//! Control messages (cmsg(3)): what accompanies a datagram's payload.
//!
//! They are written and parsed as plain bytes with checked bounds, so nothing here is unsafe and
//! nothing can be left half written.

use std::mem::{offset_of, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The local address of a datagram, and its interface (`0` for any): `struct in_pktinfo` (ip(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PktInfo {
    /// The address; IPv4-mapped on an IPv6 socket that receives IPv4, too.
    pub ip: IpAddr,
    /// Index of the interface (netdevice(7)).
    pub interface: u32,
}

/// A buffer for the control messages of one datagram, aligned as the kernel requires.
#[derive(Clone, Copy, Debug)]
#[repr(align(8))]
pub(super) struct Control([u8; CONTROL_BYTES]);

/// The control messages of a received datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ControlMessages {
    pub(super) local: Option<PktInfo>,
    pub(super) original: Option<SocketAddr>,
    pub(super) segment: Option<u16>,
    pub(super) dropped_total: Option<u32>,
}

impl Control {
    pub(super) const EMPTY: Self = Self([0; CONTROL_BYTES]);
    pub(super) const CONTROL_BYTES: usize = CONTROL_BYTES;

    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    /// Writes the control messages of a datagram to send; returns their length.
    pub(super) fn write(&mut self, from: Option<PktInfo>, segment: Option<u16>) -> usize {
        let mut used = 0;
        match from {
            Some(PktInfo {
                ip: IpAddr::V4(ip),
                interface,
            }) => {
                // struct in_pktinfo: interface, source to use, and a field only used on receipt.
                let mut info = [0; 12];
                info[..4].copy_from_slice(&interface.to_ne_bytes());
                info[4..8].copy_from_slice(&ip.octets());
                used = self.put(used, libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            Some(PktInfo {
                ip: IpAddr::V6(ip),
                interface,
            }) => {
                // struct in6_pktinfo: source to use, interface.
                let mut info = [0; 20];
                let (address, index) = info.split_at_mut(16);
                address.copy_from_slice(&ip.octets());
                index.copy_from_slice(&interface.to_ne_bytes());
                used = self.put(used, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
            None => {}
        }
        if let Some(size) = segment {
            used = self.put(used, libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
        }
        used
    }

    /// Writes a control message at offset `at`; returns the offset after it.
    fn put(&mut self, at: usize, level: i32, kind: i32, data: &[u8]) -> usize {
        let len = HEADER_LEN + data.len();
        let end = at + aligned(len);
        let Some(space) = self.0.get_mut(at..end) else {
            unreachable!("CONTROL_BYTES holds all that `write` puts");
        };
        space.fill(0);
        let mut field = |offset: usize, bytes: &[u8]| {
            space[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        field(offset_of!(libc::cmsghdr, cmsg_len), &len.to_ne_bytes());
        field(offset_of!(libc::cmsghdr, cmsg_level), &level.to_ne_bytes());
        field(offset_of!(libc::cmsghdr, cmsg_type), &kind.to_ne_bytes());
        field(HEADER_LEN, data);
        end
    }

    /// Parses the first `len` bytes, which the kernel has written.
    pub(super) fn read(&self, len: usize) -> ControlMessages {
        let mut read = ControlMessages::default();
        let mut rest = self.0.get(..len).unwrap_or(&self.0);
        while let Some((message, next)) = split_first(rest) {
            let data = message.data;
            match (message.level, message.kind) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => read.local = local_v4(data),
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => read.local = local_v6(data),
                (libc::IPPROTO_IP, libc::IP_ORIGDSTADDR) => read.original = sockaddr_v4(data),
                (libc::IPPROTO_IPV6, libc::IPV6_ORIGDSTADDR) => read.original = sockaddr_v6(data),
                // The kernel returns an int, whatever type the option takes.
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    read.segment = int(data).and_then(|size| u16::try_from(size).ok());
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => read.dropped_total = int(data),
                _ => {}
            }
            rest = next;
        }
        read
    }
}

/// One control message: `struct cmsghdr`, and its data.
struct ControlMessage<'a> {
    level: i32,
    kind: i32,
    data: &'a [u8],
}

/// Splits off the first control message.
fn split_first(bytes: &[u8]) -> Option<(ControlMessage<'_>, &[u8])> {
    let word = |offset: usize| bytes.get(offset..)?.first_chunk();
    let len = bytes
        .get(offset_of!(libc::cmsghdr, cmsg_len)..)?
        .first_chunk()?;
    let len = usize::from_ne_bytes(*len);
    let message = ControlMessage {
        level: i32::from_ne_bytes(*word(offset_of!(libc::cmsghdr, cmsg_level))?),
        kind: i32::from_ne_bytes(*word(offset_of!(libc::cmsghdr, cmsg_type))?),
        data: bytes.get(HEADER_LEN..len)?,
    };
    Some((message, bytes.get(aligned(len)..).unwrap_or_default()))
}

fn int(data: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(*data.first_chunk()?))
}

/// The third field of `struct in_pktinfo`: the destination in the datagram's header. The second is the address that the kernel
/// would reply from.
fn local_v4(data: &[u8]) -> Option<PktInfo> {
    Some(PktInfo {
        ip: Ipv4Addr::from(*data.get(8..)?.first_chunk::<4>()?).into(),
        interface: int(data)?,
    })
}

/// The fields of `struct in6_pktinfo`.
fn local_v6(data: &[u8]) -> Option<PktInfo> {
    Some(PktInfo {
        ip: Ipv6Addr::from(*data.first_chunk::<16>()?).into(),
        interface: int(data.get(16..)?)?,
    })
}

/// struct sockaddr_in: family, port, address.
fn sockaddr_v4(data: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(*data.get(2..)?.first_chunk()?);
    let ip = Ipv4Addr::from(*data.get(4..)?.first_chunk::<4>()?);
    Some((ip, port).into())
}

/// struct sockaddr_in6: family, port, flow, address, scope.
fn sockaddr_v6(data: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(*data.get(2..)?.first_chunk()?);
    let ip = Ipv6Addr::from(*data.get(8..)?.first_chunk::<16>()?);
    let scope = int(data.get(24..)?)?;
    Some(SocketAddrV6::new(ip, port, 0, scope).into())
}

const fn aligned(len: usize) -> usize {
    len.next_multiple_of(size_of::<usize>())
}

/// Where the data of a control message begins (CMSG_DATA).
const HEADER_LEN: usize = aligned(size_of::<libc::cmsghdr>());
/// The length of all control messages that may come together: in6_pktinfo, in_pktinfo, sockaddr_in6, the segment size and the
/// drop count. A smaller buffer would truncate the last ones (MSG_CTRUNC).
const CONTROL_BYTES: usize =
    5 * HEADER_LEN + aligned(20) + aligned(12) + aligned(28) + 2 * aligned(4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_ipv6_address_is_parsed_and_messages_fit_the_buffer() {
        for ip in ["192.0.2.1", "2001:db8::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            let mut control = Control::EMPTY;
            let used = control.write(Some(PktInfo { ip, interface: 7 }), Some(1200));
            // An in_pktinfo does not read as written: the kernel takes the source from its second field, the parser reads the
            // third.
            if ip.is_ipv6() {
                assert_eq!(control.read(used).local, Some(PktInfo { ip, interface: 7 }));
            }
            assert!(used <= CONTROL_BYTES && used.is_multiple_of(size_of::<usize>()));
        }
        let mut control = Control::EMPTY;
        assert_eq!(control.write(None, None), 0);
    }

    #[test]
    fn original_destinations_are_parsed() {
        let data = [&[2, 0, 0x1f, 0x90, 192, 0, 2, 7][..], &[0; 8]].concat();
        let mut control = Control::EMPTY;
        let used = control.put(0, libc::IPPROTO_IP, libc::IP_ORIGDSTADDR, &data);
        let original = control.read(used).original;
        assert_eq!(original, Some("192.0.2.7:8080".parse().unwrap()));
        let address = "2001:db8::7".parse::<Ipv6Addr>().unwrap().octets();
        let scope = 7_u32.to_ne_bytes();
        let data = [&[10, 0, 0, 53, 0, 0, 0, 0][..], &address, &scope].concat();
        let used = control.put(0, libc::IPPROTO_IPV6, libc::IPV6_ORIGDSTADDR, &data);
        let original = control.read(used).original;
        assert_eq!(original, Some("[2001:db8::7%7]:53".parse().unwrap()));
    }

    #[test]
    fn truncated_and_invalid_control_messages_are_ignored() {
        let mut control = Control::EMPTY;
        let ip = "2001:db8::1".parse().unwrap();
        let used = control.write(Some(PktInfo { ip, interface: 7 }), None);
        for len in 0..used - 4 {
            assert_eq!(control.read(len), ControlMessages::default(), "{len}");
        }
        assert_eq!(
            Control([0xff; CONTROL_BYTES]).read(CONTROL_BYTES),
            ControlMessages::default()
        );
        assert_eq!(
            Control([0; CONTROL_BYTES]).read(CONTROL_BYTES),
            ControlMessages::default()
        );
    }
}

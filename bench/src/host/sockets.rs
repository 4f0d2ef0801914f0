//! The kernel's table of sockets: listeners, and the sources of a proxy's connections.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context, Result};

use crate::wire::transport::Transport;

/// One socket of this namespace.
pub(crate) struct SocketEntry {
    pub(crate) local: SocketAddrV4,
    pub(crate) remote: SocketAddrV4,
    pub(crate) is_listening: bool,
}

/// Reads the IPv4 sockets of this namespace. Dual-stack sockets are in another table; no contestant has one, as each is
/// configured with an IPv4 address.
pub(crate) fn read_table(transport: Transport) -> Result<Vec<SocketEntry>> {
    let path = match transport {
        Transport::Tcp => "/proc/net/tcp",
        Transport::Udp => "/proc/net/udp",
    };
    let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    let entries = text.lines().filter_map(|line| parse_entry(line, transport));
    Ok(entries.collect())
}

/// Parses a line of the table, see proc_pid_net(5): number, local, remote, state, all hexadecimal. An unconnected
/// UDP socket is CLOSE; a connected one is ESTABLISHED.
fn parse_entry(line: &str, transport: Transport) -> Option<SocketEntry> {
    let mut fields = line.split_whitespace().skip(1);
    let listening_state = match transport {
        Transport::Tcp => "0A",
        Transport::Udp => "07",
    };
    Some(SocketEntry {
        local: parse_address(fields.next()?)?,
        remote: parse_address(fields.next()?)?,
        is_listening: fields.next()? == listening_state,
    })
}

fn parse_address(text: &str) -> Option<SocketAddrV4> {
    let (ip, port) = text.split_once(':')?;
    // The kernel prints the address as a number in host byte order, and the port in network byte order.
    let ip = u32::from_str_radix(ip, 16).ok()?.to_ne_bytes();
    Some(SocketAddrV4::new(
        Ipv4Addr::from(ip),
        u16::from_str_radix(port, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn kernel_table_line_is_parsed() {
        let line = "   1: 0100007F:1F90 0101010A:0400 01 00000000:00000000 00:00000000 00000000";
        let entry = parse_entry(line, Transport::Tcp).unwrap();
        assert_eq!(entry.local, "127.0.0.1:8080".parse().unwrap());
        assert_eq!(entry.remote, "10.1.1.1:1024".parse().unwrap());
        assert!(!entry.is_listening);
    }

    #[test]
    fn listening_sockets_are_found() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(is_listening(tcp.local_addr().unwrap(), Transport::Tcp));
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(is_listening(udp.local_addr().unwrap(), Transport::Udp));
        udp.connect("127.0.0.1:9").unwrap();
        assert!(!is_listening(udp.local_addr().unwrap(), Transport::Udp));
    }

    fn is_listening(address: SocketAddr, transport: Transport) -> bool {
        let table = read_table(transport).unwrap();
        table
            .iter()
            .any(|entry| SocketAddr::from(entry.local) == address && entry.is_listening)
    }
}

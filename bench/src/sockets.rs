//! The kernel's table of sockets: who listens, and whom a proxy poses as.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context, Result};

use crate::load::Transport;

/// One of this namespace's sockets.
pub(crate) struct Entry {
    pub(crate) local: SocketAddrV4,
    pub(crate) remote: SocketAddrV4,
    pub(crate) is_listening: bool,
}

/// This namespace's IPv4 sockets. A proxy may listen on a dual-stack socket, which the kernel
/// keeps in another table; none of ours does, as all are told an IPv4 address.
///
/// # Errors
/// The table can't be read.
pub(crate) fn table(transport: Transport) -> Result<Vec<Entry>> {
    let path = match transport {
        Transport::Tcp => "/proc/net/tcp",
        Transport::Udp => "/proc/net/udp",
    };
    let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    let entries = text.lines().filter_map(|line| entry(line, transport));
    Ok(entries.collect())
}

/// A line of the table, see proc_pid_net(5): number, local, remote, state, all hexadecimal. A UDP
/// socket that takes datagrams from everybody is CLOSE; a connected one is ESTABLISHED.
fn entry(line: &str, transport: Transport) -> Option<Entry> {
    let mut fields = line.split_whitespace().skip(1);
    let listening = match transport {
        Transport::Tcp => "0A",
        Transport::Udp => "07",
    };
    Some(Entry {
        local: address(fields.next()?)?,
        remote: address(fields.next()?)?,
        is_listening: fields.next()? == listening,
    })
}

fn address(text: &str) -> Option<SocketAddrV4> {
    let (ip, port) = text.split_once(':')?;
    // The kernel prints the address as a number in the machine's order, the port in the network's.
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
    fn reads_the_kernels_table() {
        let line = "   1: 0100007F:1F90 0101010A:0400 01 00000000:00000000 00:00000000 00000000";
        let entry = entry(line, Transport::Tcp).unwrap();
        assert_eq!(entry.local, "127.0.0.1:8080".parse().unwrap());
        assert_eq!(entry.remote, "10.1.1.1:1024".parse().unwrap());
        assert!(!entry.is_listening);
    }

    #[test]
    fn finds_who_listens() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(listens(tcp.local_addr().unwrap(), Transport::Tcp));
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(listens(udp.local_addr().unwrap(), Transport::Udp));
        udp.connect("127.0.0.1:9").unwrap();
        assert!(!listens(udp.local_addr().unwrap(), Transport::Udp));
    }

    fn listens(address: SocketAddr, transport: Transport) -> bool {
        let table = table(transport).unwrap();
        table
            .iter()
            .any(|entry| SocketAddr::from(entry.local) == address && entry.is_listening)
    }
}

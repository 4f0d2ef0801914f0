//! The sockets of this network namespace by the kernel's tables (proc(5)), and the processes that have them open.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use peername_sys::Transport;

/// A socket that receives what is sent to its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Receiver {
    address: SocketAddr,
    /// 0 if the table has none.
    inode: u64,
}

/// A process that has a socket open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    /// The name of its main thread, as ps(1) and ss(8) show it.
    pub(crate) name: String,
    /// The name of its file.
    pub(crate) program: String,
    /// The first word of its command line after the program.
    pub(crate) command: String,
}

/// The addresses of TCP listeners on this port.
pub(crate) fn listeners_on(port: u16) -> Vec<SocketAddr> {
    receivers(Transport::Tcp, port)
        .map(|socket| socket.address)
        .collect()
}

/// The addresses of unconnected UDP sockets on this port.
pub(crate) fn receivers_on(port: u16) -> Vec<SocketAddr> {
    receivers(Transport::Udp, port)
        .map(|socket| socket.address)
        .collect()
}

/// As [`receivers_on`], without the sockets of processes for which `is_excluded` is true.
pub(crate) fn receivers_of_others(
    port: u16,
    is_excluded: impl Fn(&Holder) -> bool,
) -> Vec<SocketAddr> {
    let excluded: Vec<_> = processes()
        .filter(|process| is_excluded(&Holder::read(process)))
        .collect();
    receivers(Transport::Udp, port)
        .filter(|socket| {
            let link = [socket.link()];
            !excluded.iter().any(|process| process.has_open(&link))
        })
        .map(|socket| socket.address)
        .collect()
}

/// A process that has a socket which keeps others from binding this address; `None` if no process has one, or this user may not
/// see which.
pub(crate) fn find_holder(address: SocketAddr, transport: Transport) -> Option<Holder> {
    let links: Vec<_> = overlapping(address, transport)
        .map(|socket| socket.link())
        .collect();
    processes()
        .find(|process| process.has_open(&links))
        .map(|process| Holder::read(&process))
}

/// A process and its directory in /proc.
struct ProcessDir {
    pid: u32,
    path: PathBuf,
}

fn processes() -> impl Iterator<Item = ProcessDir> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            Some(ProcessDir {
                pid: entry.file_name().to_str()?.parse().ok()?,
                path: entry.path(),
            })
        })
}

impl ProcessDir {
    /// Whether the process has one of these files open.
    fn has_open(&self, links: &[String]) -> bool {
        fs::read_dir(self.path.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .flat_map(|descriptor| fs::read_link(descriptor.path()))
            .any(|target| links.iter().any(|link| target.as_os_str() == link.as_str()))
    }
}

impl Receiver {
    /// What a descriptor of this socket links to in /proc.
    fn link(&self) -> String {
        format!("socket:[{}]", self.inode)
    }
}

impl Holder {
    fn read(process: &ProcessDir) -> Self {
        let ProcessDir { pid, path } = process;
        let program = fs::read_link(path.join("exe")).unwrap_or_default();
        let program = program.file_name().unwrap_or_default().to_string_lossy();
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        let words = fs::read(path.join("cmdline")).unwrap_or_default();
        let command = words.split(|&byte| byte == 0).nth(1).unwrap_or_default();
        Self {
            pid: *pid,
            name: name.trim_end().escape_debug().to_string(),
            program: program.trim_end_matches(DELETED).to_owned(),
            command: command.escape_ascii().to_string(),
        }
    }
}

/// Whether a socket keeps others from binding this address.
pub(crate) fn is_taken(address: SocketAddr, transport: Transport) -> bool {
    overlapping(address, transport).next().is_some()
}

/// The sockets that keep others from binding this address: they receive what is sent to it, or a socket bound to it would
/// receive what is sent to their address.
fn overlapping(address: SocketAddr, transport: Transport) -> impl Iterator<Item = Receiver> {
    receivers(transport, address.port())
        .filter(move |socket| accepts(socket.address, address) || accepts(address, socket.address))
}

/// Whether the socket receives what is sent to `target`. `[::]` is assumed to receive IPv4 too, as it does without
/// IPV6_V6ONLY. The kernel's tables have no scope of a link-local address.
pub(crate) fn accepts(listener: SocketAddr, target: SocketAddr) -> bool {
    match listener {
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => true,
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => target.is_ipv4(),
        _ => listener.ip() == target.ip(),
    }
}

fn receivers(transport: Transport, port: u16) -> impl Iterator<Item = Receiver> {
    let (tables, state) = match transport {
        Transport::Tcp => (["tcp", "tcp6"], LISTEN),
        Transport::Udp => (["udp", "udp6"], UNCONNECTED),
    };
    tables
        .into_iter()
        .filter_map(|table| fs::read_to_string(format!("/proc/thread-self/net/{table}")).ok())
        .flat_map(move |table| {
            table
                .lines()
                .filter_map(|line| parse_receiver(line, state))
                .collect::<Vec<_>>()
        })
        .filter(move |socket| socket.address.port() == port)
}

/// Parses a line of `/proc/net/tcp`: `sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode …` (proc(5)).
/// Addresses are words in this machine's byte order.
fn parse_receiver(line: &str, state: &str) -> Option<Receiver> {
    let mut columns = line.split_whitespace();
    let (address, port) = columns.nth(1)?.split_once(':')?;
    if columns.nth(1)? != state {
        return None;
    }
    let mut bytes = [0; 16];
    for (part, word) in bytes.chunks_exact_mut(4).zip(address.as_bytes().chunks(8)) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        part.copy_from_slice(&word.to_ne_bytes());
    }
    let ip: IpAddr = match address.len() {
        8 => Ipv4Addr::from([bytes[0], bytes[1], bytes[2], bytes[3]]).into(),
        32 => Ipv6Addr::from(bytes).into(),
        _ => return None,
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    let inode = columns.nth(5).and_then(|inode| inode.parse().ok());
    Some(Receiver {
        // A socket of IPv6 may be bound to an address of IPv4, as Java's are.
        address: SocketAddr::new(ip.to_canonical(), port),
        inode: inode.unwrap_or_default(),
    })
}

/// The suffix by which the kernel marks a file that was replaced, as by an upgrade.
const DELETED: &str = " (deleted)";
/// TCP_LISTEN in the kernel's list of states.
const LISTEN: &str = "0A";
/// TCP_CLOSE, which a UDP socket is in until it is connected.
const UNCONNECTED: &str = "07";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_listeners_are_found_with_their_process() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let socket = std::net::TcpListener::bind(address).unwrap();
            let address = socket.local_addr().unwrap();
            assert_eq!(listeners_on(address.port()), [address]);
            let holder = find_holder(address, Transport::Tcp);
            assert_eq!(holder.unwrap().pid, std::process::id());
            drop(socket);
            assert_eq!(find_holder(address, Transport::Tcp), None);
        }
    }

    #[test]
    fn ipv4_mapped_address_is_read_as_ipv4() {
        let line =
            "   0: 0000000000000000FFFF00000100007F:1F90 00000000000000000000000000000000:0000 0A";
        let found = parse_receiver(line, LISTEN).unwrap();
        assert_eq!(found.address.to_string(), "127.0.0.1:8080");
    }

    #[test]
    fn lines_without_a_listener_are_skipped() {
        for line in [
            "",
            "  sl  local_address rem_address   st",
            "   0: 0100007F:01BB 0100007F:C350 01 00000000:00000000",
            "   0: 0100007F 00000000:0000 0A",
            "   0: 0100:01BB 00000000:0000 0A",
        ] {
            assert_eq!(parse_receiver(line, LISTEN), None, "{line}");
        }
    }
}

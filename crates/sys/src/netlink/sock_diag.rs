//! Listing TCP and MPTCP sockets (sock_diag(7)). Needs no capability.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, netlink};

use crate::netlink::raw::{self, NLMSG_DONE, NLMSG_ERROR};
use crate::tcp::socket_info::StreamProtocol;
use crate::{NameCall, Result};

/// A socket that a process has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedSocket {
    /// SO_COOKIE.
    pub cookie: u64,
    /// The inode number, as of fstat(2). A TCP connection of an MPTCP socket has that of the MPTCP socket.
    pub inode: u64,
}

/// Lists the connected sockets of the calling thread's network namespace that a process has open, of both address families.
///
/// Listening sockets and those in TIME_WAIT are not included. A socket may be missing if another one is closed meanwhile: the
/// kernel resumes a list at a position in a chain of sockets.
///
/// # Errors
///
/// EINTR for a dump that was interrupted by a change: sockets may be missing, so retry. ENOENT where the kernel does not
/// list this protocol (CONFIG_INET_DIAG, CONFIG_INET_MPTCP_DIAG). Else those of the netlink socket.
pub fn connected_sockets(protocol: StreamProtocol) -> Result<Vec<ListedSocket>> {
    let diag = raw::open(Some(netlink::SOCK_DIAG)).call("socket(NETLINK_SOCK_DIAG)")?;
    let mut sockets = Vec::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        let request = raw::dump_request(SOCK_DIAG_BY_FAMILY, &request(family, protocol));
        raw::send_request(&diag, &request).call("send(SOCK_DIAG_BY_FAMILY)")?;
        receive_dump(&diag, &mut sockets).call("recv(SOCK_DIAG_BY_FAMILY)")?;
    }
    Ok(sockets)
}

/// `struct inet_diag_req_v2` (linux/inet_diag.h), and for MPTCP, whose number does not fit in it, INET_DIAG_REQ_PROTOCOL.
fn request(family: AddressFamily, protocol: StreamProtocol) -> Vec<u8> {
    let mut request = vec![0; REQUEST_LEN];
    request[0] = u8::try_from(family.as_raw()).unwrap_or_default();
    request[4..8].copy_from_slice(&CONNECTED.to_ne_bytes());
    match protocol {
        StreamProtocol::Tcp => request[1] = IPPROTO_TCP,
        StreamProtocol::Multipath => {
            request.extend(8_u16.to_ne_bytes());
            request.extend(INET_DIAG_REQ_PROTOCOL.to_ne_bytes());
            request.extend(IPPROTO_MPTCP.to_ne_bytes());
        }
    }
    request
}

fn receive_dump(diag: &OwnedFd, sockets: &mut Vec<ListedSocket>) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mut rest = raw::receive(diag, &mut buffer)?;
        while let Some((message, after)) = raw::split_first(rest) {
            match message.kind {
                NLMSG_DONE => return Ok(()),
                // A failed or interrupted dump may omit sockets, which would be taken for closed.
                NLMSG_ERROR => return Err(message.error()),
                _ if message.flags & DUMP_INTERRUPTED != 0 => {
                    return Err(ErrorKind::Interrupted.into());
                }
                _ => sockets.extend(open_socket(message.body)),
            }
            rest = after;
        }
    }
}

/// The socket of `struct inet_diag_msg`; `None` if no process has it open any more, as then it has no inode.
fn open_socket(body: &[u8]) -> Option<ListedSocket> {
    let word = |offset: usize| {
        let bytes = body.get(offset..)?.first_chunk()?;
        Some(u64::from(u32::from_ne_bytes(*bytes)))
    };
    let cookie = word(COOKIE_HIGH)? << 32 | word(COOKIE_LOW)?;
    let inode = word(INODE)?;
    (inode != 0).then_some(ListedSocket { cookie, inode })
}

/// Offsets in `struct inet_diag_msg` (linux/inet_diag.h).
const COOKIE_LOW: usize = 44;
const COOKIE_HIGH: usize = 48;
const INODE: usize = 68;
/// The length of `struct inet_diag_req_v2`.
pub(super) const REQUEST_LEN: usize = 56;

pub(super) const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_REQ_PROTOCOL: u16 = 3;
/// NLM_F_DUMP_INTR.
const DUMP_INTERRUPTED: u16 = 0x10;
pub(super) const IPPROTO_TCP: u8 = 6;
const IPPROTO_MPTCP: u32 = 262;
/// Every state but SYN_RECV (3), TIME_WAIT (6), LISTEN (10) and NEW_SYN_RECV (12).
const CONNECTED: u32 = 0xfff & !(1 << 3 | 1 << 6 | 1 << 10);

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::tcp::socket_info::cookie;

    fn listed_cookies() -> Vec<u64> {
        let sockets = connected_sockets(StreamProtocol::Tcp).unwrap();
        sockets.iter().map(|socket| socket.cookie).collect()
    }

    #[test]
    fn only_open_connected_sockets_are_listed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let (server, _) = listener.accept().unwrap();
        let (kept, closed) = (cookie(&client).unwrap(), cookie(&server).unwrap());
        let live = listed_cookies();
        assert!(live.contains(&kept) && live.contains(&closed));
        assert!(!live.contains(&cookie(&listener).unwrap()));
        drop(server);
        // The child of a fork in another test has the socket open until it calls execve(2).
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let live = listed_cookies();
            assert!(live.contains(&kept));
            if !live.contains(&closed) {
                break;
            }
            assert!(Instant::now() < deadline, "the closed socket is listed");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

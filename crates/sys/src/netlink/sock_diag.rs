//! Listing TCP sockets (sock_diag(7)). Needs no capability.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, netlink};

use crate::netlink::raw::{self, NLMSG_DONE, NLMSG_ERROR};
use crate::{NameCall, Result};

/// The cookies of all connected TCP sockets, of both families, of the calling thread's network
/// namespace, that a process has open.
///
/// Listening sockets and those in TIME_WAIT are not included.
///
/// # Errors
///
/// EINTR for a dump that was interrupted by a change: sockets may be missing, so retry. Else those of the netlink socket.
pub fn open_tcp_cookies() -> Result<HashSet<u64>> {
    let diag = raw::open(Some(netlink::SOCK_DIAG)).call("socket(NETLINK_SOCK_DIAG)")?;
    let mut cookies = HashSet::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        let request = raw::dump_request(SOCK_DIAG_BY_FAMILY, &request(family));
        raw::send_request(&diag, &request).call("send(SOCK_DIAG_BY_FAMILY)")?;
        receive_dump(&diag, &mut cookies).call("recv(SOCK_DIAG_BY_FAMILY)")?;
    }
    Ok(cookies)
}

/// `struct inet_diag_req_v2` (linux/inet_diag.h).
fn request(family: AddressFamily) -> [u8; 56] {
    let mut request = [0; 56];
    request[0] = u8::try_from(family.as_raw()).unwrap_or_default();
    request[1] = IPPROTO_TCP;
    request[4..8].copy_from_slice(&CONNECTED.to_ne_bytes());
    request
}

fn receive_dump(diag: &OwnedFd, cookies: &mut HashSet<u64>) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mut rest = raw::receive(diag, &mut buffer)?;
        while let Some((message, after)) = raw::split_first(rest) {
            match message.kind {
                NLMSG_DONE => return Ok(()),
                // An interrupted dump may omit sockets, which would be taken for closed.
                NLMSG_ERROR => return Err(ErrorKind::InvalidData.into()),
                _ if message.flags & INTERRUPTED != 0 => {
                    return Err(ErrorKind::Interrupted.into());
                }
                _ => cookies.extend(open_socket(message.body)),
            }
            rest = after;
        }
    }
}

/// The cookie in `struct inet_diag_msg`, unless no process has the socket open any more: it has no
/// inode then.
fn open_socket(body: &[u8]) -> Option<u64> {
    let cookie = body.get(44..52)?.as_chunks::<4>().0;
    let inode = body.get(68..72)?;
    let [low, high] = cookie else { return None };
    let word = |bytes: &[u8; 4]| u64::from(u32::from_ne_bytes(*bytes));
    inode
        .iter()
        .any(|&byte| byte != 0)
        .then(|| word(high) << 32 | word(low))
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INTERRUPTED: u16 = 0x10;
const IPPROTO_TCP: u8 = 6;
/// Every state but SYN_RECV (3), TIME_WAIT (6), LISTEN (10) and NEW_SYN_RECV (12).
const CONNECTED: u32 = 0xfff & !(1 << 3 | 1 << 6 | 1 << 10);

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::tcp::socket_info::cookie;

    #[test]
    fn only_open_connected_sockets_are_listed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let (server, _) = listener.accept().unwrap();
        let (kept, closed) = (cookie(&client).unwrap(), cookie(&server).unwrap());
        let live = open_tcp_cookies().unwrap();
        assert!(live.contains(&kept) && live.contains(&closed));
        assert!(!live.contains(&cookie(&listener).unwrap()));
        drop(server);
        // The child of a fork in another test has the socket open until it calls execve(2).
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let live = open_tcp_cookies().unwrap();
            assert!(live.contains(&kept));
            if !live.contains(&closed) {
                break;
            }
            assert!(Instant::now() < deadline, "the closed socket is listed");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

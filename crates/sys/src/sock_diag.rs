//! Which TCP sockets there are (sock_diag(7)). Needs no capability.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use crate::{NameCall, Result};

/// The cookies of all connected TCP sockets, of both families, of the calling thread's network
/// namespace, that some process has open.
///
/// Sockets that listen, or are closed but for a timer, are not among them.
pub fn live_tcp_sockets() -> Result<HashSet<u64>> {
    let diag = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )
    .call("socket(NETLINK_SOCK_DIAG)")?;
    let mut cookies = HashSet::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        send(&diag, &dump_request(family), SendFlags::empty()).call("send(SOCK_DIAG_BY_FAMILY)")?;
        receive_dump(&diag, &mut cookies).call("recv(SOCK_DIAG_BY_FAMILY)")?;
    }
    Ok(cookies)
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2` (linux/inet_diag.h).
fn dump_request(family: AddressFamily) -> Vec<u8> {
    let family = u8::try_from(family.as_raw()).unwrap_or_default();
    let mut request = Vec::with_capacity(REQUEST_LEN);
    request.extend(u32::try_from(REQUEST_LEN).unwrap_or_default().to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(DUMP.to_ne_bytes());
    request.extend([0; 8]); // sequence number, port
    request.extend([family, IPPROTO_TCP, 0, 0]);
    request.extend(CONNECTED.to_ne_bytes());
    request.resize(REQUEST_LEN, 0);
    request
}

fn receive_dump(diag: impl AsFd, cookies: &mut HashSet<u64>) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let (len, _) = recv(&diag, buffer.as_mut_slice(), RecvFlags::empty())?;
        let mut rest = buffer.get(..len).unwrap_or_default();
        while let Some((message, after)) = split_message(rest) {
            match message.kind {
                NLMSG_DONE => return Ok(()),
                // An interrupted dump may have left sockets out, and those would be taken for closed.
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

struct Message<'a> {
    kind: u16,
    flags: u16,
    body: &'a [u8],
}

fn split_message(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let (head, _) = bytes.split_first_chunk::<16>()?;
    let [l0, l1, l2, l3, k0, k1, f0, f1, ..] = *head;
    let len = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).ok()?;
    let message = Message {
        kind: u16::from_ne_bytes([k0, k1]),
        flags: u16::from_ne_bytes([f0, f1]),
        body: bytes.get(16..len)?,
    };
    let next = len.checked_next_multiple_of(4)?.min(bytes.len());
    Some((message, bytes.get(next..)?))
}

/// The cookie in `struct inet_diag_msg`, unless no process has the socket open any more: such has no
/// inode.
fn open_socket(body: &[u8]) -> Option<u64> {
    let cookie = body.get(44..52)?.as_chunks::<4>().0;
    let inode = body.get(68..72)?;
    let [low, high] = cookie else { return None };
    let word = |bytes: &[u8; 4]| u64::from(u32::from_ne_bytes(*bytes));
    inode
        .iter()
        .any(|&octet| octet != 0)
        .then(|| word(high) << 32 | word(low))
}

const REQUEST_LEN: usize = 16 + 56;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// NLM_F_REQUEST and NLM_F_DUMP.
const DUMP: u16 = 0x301;
const INTERRUPTED: u16 = 0x10;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const IPPROTO_TCP: u8 = 6;
/// Every state but SYN_RECV (3), TIME_WAIT (6), LISTEN (10) and NEW_SYN_RECV (12).
const CONNECTED: u32 = 0xfff & !(1 << 3 | 1 << 6 | 1 << 10);

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::tcp_socket::cookie;

    #[test]
    fn knows_the_open_ones_only() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let (server, _) = listener.accept().unwrap();
        let (kept, closed) = (cookie(&client).unwrap(), cookie(&server).unwrap());
        let live = live_tcp_sockets().unwrap();
        assert!(live.contains(&kept) && live.contains(&closed));
        assert!(!live.contains(&cookie(&listener).unwrap()));
        drop(server);
        let live = live_tcp_sockets().unwrap();
        assert!(live.contains(&kept) && !live.contains(&closed));
    }
}

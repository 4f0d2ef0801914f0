//! Frees the slots of closed sockets where there is no header waiter to do it: by sock_diag(7), else by /proc/net/tcp.

use core::ffi::{CStr, c_int};

use peername_identity::{SocketKey, SocketListing, Table, connected_inode};
use peername_preload_common::kernel::{self, Errno, MSG_NOSIGNAL, SOCK_CLOEXEC, SOCK_RAW};

/// Frees the slots of sockets that the kernel does not list any more. If it can't list them, nothing is freed.
pub(crate) fn sweep(table: Table<'_>) {
    let policy = table.settings().policy();
    if policy.namespace != 0 {
        let sweep = table.begin_sweep();
        // A list may omit a socket if another one is closed meanwhile; the second has it.
        let lists = [(); 2].map(|()| list(policy.listing, CONNECTED, |key| table.mark(key, sweep)));
        if lists.iter().all(Option::is_some) {
            table.remove_unmarked(sweep, policy.namespace);
        }
    }
    table.settings().schedule_sweep();
}

/// The first way to list sockets that is available, tried with a list of no state: each process does so at its start.
pub(crate) fn find_listing() -> SocketListing {
    [SocketListing::Diag, SocketListing::DiagWithoutMultipath]
        .into_iter()
        .find(|&listing| list(listing, NO_STATE, |_| ()).is_some())
        .unwrap_or(SocketListing::Proc)
}

/// Lists the keys of the open sockets, by sock_diag(7) those in these states; `None` unless the list is complete.
fn list(listing: SocketListing, states: [u8; 4], mut found: impl FnMut(SocketKey)) -> Option<()> {
    if listing == SocketListing::Proc {
        read_lines(c"/proc/self/net/tcp", &mut found).ok()?;
        // Without IPv6 there is no such file.
        return match read_lines(c"/proc/self/net/tcp6", &mut found) {
            Ok(()) | Err(Errno::ENOENT) => Some(()),
            Err(_) => None,
        };
    }
    let protocols: &[u32] = match listing {
        SocketListing::Diag => &[IPPROTO_TCP, IPPROTO_MPTCP],
        _ => &[IPPROTO_TCP],
    };
    let diag = kernel::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, SOCK_DIAG).ok()?;
    let complete = protocols.iter().all(|&protocol| {
        [INET, INET6]
            .iter()
            .all(|&family| dump(diag, request(family, protocol, states), &mut found).is_some())
    });
    kernel::close(diag);
    complete.then_some(())
}

/// Lists the sockets that are asked for; `None` unless the list is complete.
fn dump(diag: c_int, request: [u8; 80], found: &mut impl FnMut(SocketKey)) -> Option<()> {
    kernel::send(diag, &request, MSG_NOSIGNAL).ok()?;
    let mut buffer = [0; 8192];
    loop {
        let n = kernel::receive(diag, &mut buffer, 0).ok()?;
        let mut rest = buffer.get(..n)?;
        while let Some((head, _)) = rest.split_first_chunk::<16>() {
            let [l0, l1, l2, l3, k0, k1, f0, f1, ..] = *head;
            let len = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).ok()?;
            let body = rest.get(16..len)?;
            match u16::from_ne_bytes([k0, k1]) {
                DONE => return Some(()),
                ERROR => return None,
                // An interrupted dump may be incomplete.
                _ if u16::from_ne_bytes([f0, f1]) & INTERRUPTED != 0 => return None,
                _ => {}
            }
            open_keys(body)
                .into_iter()
                .flatten()
                .flatten()
                .for_each(&mut *found);
            let next = len.checked_next_multiple_of(4)?.min(rest.len());
            rest = rest.get(next..)?;
        }
    }
}

/// Encodes the dump request: `struct nlmsghdr`, `struct inet_diag_req_v2` (linux/inet_diag.h), and
/// INET_DIAG_REQ_PROTOCOL, which the kernel prefers to the byte in the struct.
fn request(family: u8, protocol: u32, states: [u8; 4]) -> [u8; 80] {
    let mut request = [0; 80];
    let parts: [&[u8]; 6] = [
        &80_u32.to_ne_bytes(),
        &SOCK_DIAG_BY_FAMILY.to_ne_bytes(),
        &DUMP.to_ne_bytes(),
        &[0; 8],
        // Before Linux 5.9 the kernel knows the byte alone; no protocol has the number 0.
        &[family, u8::try_from(protocol).unwrap_or(0), 0, 0],
        &states,
    ];
    let bytes = parts.into_iter().flatten();
    for (to, from) in request.iter_mut().zip(bytes) {
        *to = *from;
    }
    let attribute = u64::from(protocol) << 32 | u64::from(INET_DIAG_REQ_PROTOCOL) << 16 | 8;
    let (_, end) = request.split_at_mut(72);
    end.copy_from_slice(&attribute.to_le_bytes());
    request
}

/// The keys of the socket in `struct inet_diag_msg`, if a process has it open: it has an inode then.
fn open_keys(body: &[u8]) -> Option<[Option<SocketKey>; 2]> {
    let (low, rest) = body.get(44..)?.split_first_chunk()?;
    let (high, _) = rest.split_first_chunk()?;
    let (inode, _) = body.get(68..)?.split_first_chunk()?;
    let word = |bytes: &[u8; 4]| u64::from(u32::from_ne_bytes(*bytes));
    let inode = SocketKey::from_inode(word(inode))?;
    let cookie = SocketKey::from_cookie(word(high) << 32 | word(low));
    Some([cookie, Some(inode)])
}

/// Lists the sockets in a file of /proc. A line that is longer than the buffer is an error.
fn read_lines(path: &CStr, found: &mut impl FnMut(SocketKey)) -> kernel::Result<()> {
    let file = kernel::open(path)?;
    let mut buffer = [0; 8192];
    let mut kept = 0;
    let end = loop {
        let n = match kernel::read(file, buffer.get_mut(kept..).unwrap_or_default()) {
            Ok(0) if kept == buffer.len() => break Err(Errno::EINVAL),
            Ok(0) => break Ok(()),
            Ok(n) => kept.saturating_add(n),
            Err(error) => break Err(error),
        };
        let filled = buffer.get(..n).unwrap_or_default();
        let whole = filled.iter().rposition(|&byte| byte == b'\n').unwrap_or(0);
        filled
            .get(..whole)
            .unwrap_or_default()
            .split(|&byte| byte == b'\n')
            .filter_map(connected_inode)
            .filter_map(SocketKey::from_inode)
            .for_each(&mut *found);
        // Always so; without the comparison the compiler would keep a panic.
        if whole <= n && n <= buffer.len() {
            buffer.copy_within(whole..n, 0);
        }
        kept = n.saturating_sub(whole);
    };
    kernel::close(file);
    end
}

const AF_NETLINK: c_int = 16;
const SOCK_DIAG: c_int = 4;
const INET: u8 = 2;
const INET6: u8 = 10;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_REQ_PROTOCOL: u16 = 3;
/// NLM_F_REQUEST and NLM_F_DUMP.
const DUMP: u16 = 0x301;
const INTERRUPTED: u16 = 0x10;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_MPTCP: u32 = 262;
/// Every state but SYN_RECV (3), TIME_WAIT (6) and LISTEN (10).
const CONNECTED: [u8; 4] = (0xfff_u32 & !(1 << 3 | 1 << 6 | 1 << 10)).to_ne_bytes();
const NO_STATE: [u8; 4] = [0; 4];

//! Frees the slots of closed sockets where there is no header waiter to do it: by sock_diag(7), else by /proc/net/tcp.

use core::ffi::{CStr, c_int};

use peername_identity::{SocketKey, SocketListing, Table, connected_inode};
use peername_preload_common::kernel::{self, Errno, MSG_NOSIGNAL, SOCK_CLOEXEC, SOCK_RAW};

/// Frees the slots of sockets that the kernel does not list any more. If it can't list them, nothing is freed.
pub(crate) fn sweep(table: Table<'_>) {
    let policy = table.settings().policy();
    if policy.namespace != 0 {
        let sweep = table.begin_sweep();
        // A list may omit a socket if another one is closed meanwhile, but two lists do not omit the same one.
        let mark_open = || list_keys(policy.listing, CONNECTED, |key| table.mark(key, sweep));
        if (0..LISTS).all(|_| mark_open().is_some()) {
            table.remove_unmarked(sweep, policy.namespace);
        }
    }
    table.settings().schedule_sweep();
}

/// Finds the first listing that works. It requests the sockets in no state, which are none, because each process does this at
/// its start.
pub(crate) fn find_listing() -> SocketListing {
    [SocketListing::Diag, SocketListing::DiagWithoutMultipath]
        .into_iter()
        .find(|&listing| list_keys(listing, NO_STATE, |_| ()).is_some())
        .unwrap_or(SocketListing::Proc)
}

/// Calls `found` with the keys of the open sockets; `None` unless the list is complete. sock_diag(7) lists the sockets in these
/// states.
fn list_keys(
    listing: SocketListing,
    states: [u8; 4],
    mut found: impl FnMut(SocketKey),
) -> Option<()> {
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
        [AF_INET, AF_INET6]
            .iter()
            .all(|&family| dump(diag, request(family, protocol, states), &mut found).is_some())
    });
    kernel::close(diag);
    complete.then_some(())
}

/// Sends the request, and calls `found` with the keys of the listed sockets; `None` unless the list is complete.
fn dump(diag: c_int, request: [u8; REQUEST_LEN], found: &mut impl FnMut(SocketKey)) -> Option<()> {
    kernel::send(diag, &request, MSG_NOSIGNAL).ok()?;
    let mut buffer = [0; 8192];
    loop {
        let n = kernel::receive(diag, &mut buffer, 0).ok()?;
        let mut rest = buffer.get(..n)?;
        while let Some((header, _)) = rest.split_first_chunk::<HEADER_LEN>() {
            let (len, kind, flags) = parse_header(header);
            let len = usize::try_from(len).ok()?;
            let body = rest.get(HEADER_LEN..len)?;
            match kind {
                NLMSG_DONE => return Some(()),
                NLMSG_ERROR => return None,
                // An interrupted dump may be incomplete.
                _ if flags & NLM_F_DUMP_INTR != 0 => return None,
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

/// The length, type and flags of a `struct nlmsghdr`.
fn parse_header(header: &[u8; HEADER_LEN]) -> (u32, u16, u16) {
    let [l0, l1, l2, l3, t0, t1, f0, f1, ..] = *header;
    (
        u32::from_ne_bytes([l0, l1, l2, l3]),
        u16::from_ne_bytes([t0, t1]),
        u16::from_ne_bytes([f0, f1]),
    )
}

/// Encodes the dump request: `struct nlmsghdr`, `struct inet_diag_req_v2` (linux/inet_diag.h), and
/// INET_DIAG_REQ_PROTOCOL, which the kernel prefers to the byte in the struct.
fn request(family: u8, protocol: u32, states: [u8; 4]) -> [u8; REQUEST_LEN] {
    let mut request = [0; REQUEST_LEN];
    let parts: [&[u8]; 6] = [
        &(REQUEST_LEN as u32).to_ne_bytes(),
        &SOCK_DIAG_BY_FAMILY.to_ne_bytes(),
        &DUMP_REQUEST.to_ne_bytes(),
        &[0; 8],
        // Before Linux 5.9 the kernel knows the byte alone; no protocol has the number 0.
        &[family, u8::try_from(protocol).unwrap_or(0), 0, 0],
        &states,
    ];
    for (to, from) in request.iter_mut().zip(parts.into_iter().flatten()) {
        *to = *from;
    }
    // `struct nlattr` with its length of 8 bytes and its type, and the value.
    let attribute = u64::from(protocol) << 32 | u64::from(INET_DIAG_REQ_PROTOCOL) << 16 | 8;
    let (_, end) = request.split_at_mut(ATTRIBUTE_OFFSET);
    end.copy_from_slice(&attribute.to_le_bytes());
    request
}

/// The keys of the socket in `struct inet_diag_msg`, if a process has the socket open, which then has an inode.
fn open_keys(body: &[u8]) -> Option<[Option<SocketKey>; 2]> {
    let (low, rest) = body.get(COOKIE_OFFSET..)?.split_first_chunk()?;
    let (high, _) = rest.split_first_chunk()?;
    let (inode, _) = body.get(INODE_OFFSET..)?.split_first_chunk()?;
    let word = |bytes: &[u8; 4]| u64::from(u32::from_ne_bytes(*bytes));
    let inode = SocketKey::from_inode(word(inode))?;
    let cookie = SocketKey::from_cookie(word(high) << 32 | word(low));
    Some([cookie, Some(inode)])
}

/// Calls `found` with the keys of the sockets in a file of /proc. A line that is longer than the buffer is an error.
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
        // Always true; without the comparison the compiler would keep a panic.
        if whole <= n && n <= buffer.len() {
            buffer.copy_within(whole..n, 0);
        }
        kept = n.saturating_sub(whole);
    };
    kernel::close(file);
    end
}

/// The number of lists that a sweep makes.
const LISTS: usize = 2;
const AF_NETLINK: c_int = 16;
const SOCK_DIAG: c_int = 4;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_REQ_PROTOCOL: u16 = 3;
/// NLM_F_REQUEST and NLM_F_DUMP.
const DUMP_REQUEST: u16 = 0x301;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// The size of `struct nlmsghdr`.
const HEADER_LEN: usize = 16;
/// The offset of the attribute in a request: behind `struct nlmsghdr` and `struct inet_diag_req_v2`, which has 56 bytes.
const ATTRIBUTE_OFFSET: usize = HEADER_LEN + 56;
const REQUEST_LEN: usize = ATTRIBUTE_OFFSET + 8;
/// The offsets of `id.idiag_cookie` and `idiag_inode` in `struct inet_diag_msg`.
const COOKIE_OFFSET: usize = 44;
const INODE_OFFSET: usize = 68;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_MPTCP: u32 = 262;
/// Every state but SYN_RECV (3), TIME_WAIT (6) and LISTEN (10).
const CONNECTED: [u8; 4] = (0xfff_u32 & !(1 << 3 | 1 << 6 | 1 << 10)).to_ne_bytes();
const NO_STATE: [u8; 4] = [0; 4];

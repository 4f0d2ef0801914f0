//! Frees the slots of closed sockets where there is no header waiter to do it (sock_diag(7)).

use core::ffi::c_int;

use peername_identity::Table;
use peername_preload_common::kernel::{self, MSG_NOSIGNAL, SOCK_CLOEXEC, SOCK_RAW};

/// Frees the slots of sockets that the kernel does not list any more. If it can't list them, nothing is freed.
pub(crate) fn sweep(table: Table<'_>) {
    let namespace = table.settings().policy().namespace;
    if namespace != 0
        && let Ok(diag) = kernel::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, SOCK_DIAG)
    {
        let sweep = table.begin_sweep();
        let families = [INET, INET6];
        if families
            .iter()
            .all(|&family| mark(table, diag, family, sweep).is_some())
        {
            table.remove_unmarked(sweep, namespace);
        }
        kernel::close(diag);
    }
    table.settings().swept();
}

/// Marks the open sockets of a family; `None` unless the list is complete.
fn mark(table: Table<'_>, diag: c_int, family: u8, sweep: u64) -> Option<()> {
    kernel::send(diag, &request(family), MSG_NOSIGNAL).ok()?;
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
            if let Some(cookie) = open_socket(body) {
                table.mark(cookie, sweep);
            }
            let next = len.checked_next_multiple_of(4)?.min(rest.len());
            rest = rest.get(next..)?;
        }
    }
}

/// Encodes the dump request: `struct nlmsghdr` and `struct inet_diag_req_v2` (linux/inet_diag.h).
fn request(family: u8) -> [u8; 72] {
    let mut request = [0; 72];
    let parts: [&[u8]; 5] = [
        &72_u32.to_ne_bytes(),
        &SOCK_DIAG_BY_FAMILY.to_ne_bytes(),
        &DUMP.to_ne_bytes(),
        &[0; 8],
        &[family, IPPROTO_TCP, 0, 0],
    ];
    let bytes = parts.into_iter().flatten().chain(&CONNECTED);
    for (to, from) in request.iter_mut().zip(bytes) {
        *to = *from;
    }
    request
}

/// The cookie in `struct inet_diag_msg`, if a process has the socket open: the socket has an inode then.
fn open_socket(body: &[u8]) -> Option<u64> {
    let (low, rest) = body.get(44..)?.split_first_chunk()?;
    let (high, _) = rest.split_first_chunk()?;
    let inode = body.get(68..72)?;
    let word = |bytes: &[u8; 4]| u64::from(u32::from_ne_bytes(*bytes));
    let open = inode.iter().any(|&byte| byte != 0);
    open.then(|| word(high) << 32 | word(low))
}

const AF_NETLINK: c_int = 16;
const SOCK_DIAG: c_int = 4;
const INET: u8 = 2;
const INET6: u8 = 10;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// NLM_F_REQUEST and NLM_F_DUMP.
const DUMP: u16 = 0x301;
const INTERRUPTED: u16 = 0x10;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const IPPROTO_TCP: u8 = 6;
/// Every state but SYN_RECV (3), TIME_WAIT (6) and LISTEN (10).
const CONNECTED: [u8; 4] = (0xfff_u32 & !(1 << 3 | 1 << 6 | 1 << 10)).to_ne_bytes();

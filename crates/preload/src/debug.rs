//! The lines that LIBPROXYPROTO_DEBUG writes to standard error, in the wording of libproxyproto.

use core::net::SocketAddr;

use peername_preload_common::kernel;
use peername_proto::PlainHeader;

use crate::standalone;

/// Writes a line, if LIBPROXYPROTO_DEBUG is set.
pub(crate) fn log(line: &str) {
    if standalone::is_verbose() {
        kernel::write_stderr(line);
    }
}

/// Logs both addresses of a connection: its real peer, and the client that its header names.
pub(crate) fn log_addresses(peer: SocketAddr, client: SocketAddr) {
    if standalone::is_verbose() {
        log_address("*** orig addr=", peer);
        log_address("*** proxied addr=", client);
    }
}

/// Takes the address as text from a version 1 header (`PROXY TCP4 192.0.2.1 192.0.2.1 4711 4711`), because `core::fmt` would
/// bring paths to a panic.
fn log_address(label: &str, address: SocketAddr) {
    let header = PlainHeader::v1(address, address);
    let mut words = header.as_bytes().split(|&byte| byte == b' ');
    let ip = words.nth(2).unwrap_or_default();
    // The second address is skipped.
    let port = words.nth(1).unwrap_or_default();
    let parts = [label.as_bytes(), ip, b":", port, b"\n"];
    let mut line = [0; 96];
    let mut len = 0_usize;
    for (to, from) in line.iter_mut().zip(parts.iter().copied().flatten()) {
        *to = *from;
        len = len.saturating_add(1);
    }
    kernel::write_stderr(
        line.get(..len)
            .and_then(|line| core::str::from_utf8(line).ok())
            .unwrap_or_default(),
    );
}

//! The lines that LIBPROXYPROTO_DEBUG writes to standard error, in the wording of libproxyproto.

use core::net::SocketAddr;

use peername_preload_common::kernel;
use peername_proto::PlainHeader;

use crate::standalone;

/// Writes a line, with LIBPROXYPROTO_DEBUG.
pub(crate) fn say(line: &str) {
    if standalone::is_verbose() {
        kernel::write_stderr(line);
    }
}

/// Writes both addresses of a connection: its real peer and the client that its header names.
pub(crate) fn say_client(peer: SocketAddr, client: SocketAddr) {
    if standalone::is_verbose() {
        say_address("*** orig addr=", peer);
        say_address("*** proxied addr=", client);
    }
}

/// Formats the address by writing a version 1 header, which has it as text. `core::fmt` would bring paths to a panic.
fn say_address(what: &str, address: SocketAddr) {
    let header = PlainHeader::v1(address, address);
    let mut words = header.as_bytes().split(|&byte| byte == b' ');
    let (ip, port) = (words.nth(2), words.nth(1));
    let [ip, port] = [ip, port].map(Option::unwrap_or_default);
    let parts = [what.as_bytes(), ip, b":", port, b"\n"];
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

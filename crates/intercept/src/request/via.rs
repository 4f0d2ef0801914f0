//! The Via header, by which a request that comes back is recognized.

use std::sync::{Arc, LazyLock};

use http::{HeaderMap, HeaderValue, header};

use super::id::PROCESS;

/// The Via lines of a request.
pub(crate) type ViaLines = Arc<[HeaderValue]>;

/// Copies the Via lines of a request. Values of a parsed head would keep the whole head in memory.
pub(crate) fn read(headers: &HeaderMap) -> ViaLines {
    let copy = |line: &HeaderValue| HeaderValue::from_bytes(line.as_bytes()).ok();
    headers
        .get_all(header::VIA)
        .iter()
        .filter_map(copy)
        .collect()
}

/// Whether the Via lines are longer than those of any chain of proxies. They are kept for as long as a tunnel.
pub(crate) fn is_too_long(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::VIA).iter();
    lines.map(HeaderValue::len).sum::<usize>() > MAX_BYTES
}

/// Adds this process behind the proxies that the request came through: protocol version and pseudonym (RFC 9110, section 7.6.3).
/// Does nothing if this process is named already, as in a request that is sent again.
pub(crate) fn add_to(headers: &mut HeaderMap) {
    if !is_in_via(headers) {
        headers.append(header::VIA, HeaderValue::from_static(&VIA));
    }
}

/// Whether a Via header says that the request came through this process before.
pub(crate) fn is_in_via(headers: &HeaderMap) -> bool {
    let pseudonym = VIA.strip_prefix("1.1 ").unwrap_or(&VIA);
    headers
        .get_all(header::VIA)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|hop| hop.split_ascii_whitespace().nth(1) == Some(pseudonym))
}

const MAX_BYTES: usize = 1024;
static VIA: LazyLock<String> = LazyLock::new(|| format!("1.1 peername-{:08x}", *PROCESS));

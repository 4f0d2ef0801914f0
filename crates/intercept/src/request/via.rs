//! The Via header, by which a request that comes back is recognized.

use std::sync::LazyLock;

use http::{HeaderMap, header};

use super::id::PROCESS;

/// The value that this process adds to a Via header: protocol version and pseudonym (RFC 9110, section 7.6.3).
pub(crate) fn value() -> &'static str {
    &VIA
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

static VIA: LazyLock<String> = LazyLock::new(|| format!("1.1 peername-{:08x}", *PROCESS));

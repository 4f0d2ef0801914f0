//! Drop-in replacement of libproxyproto: the library under the name `libproxyproto.so`, listed in LD_PRELOAD by the
//! user, configured by LIBPROXYPROTO_*. There is no launcher, and so no header waiter and no trust list.
//!
//! As with libproxyproto, every peer may send a header (its documentation asks for a packet filter in front) and name any
//! client. Without LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER the program gets a connection without a header as it is. A header
//! of a version that LIBPROXYPROTO_VERSION excludes is discarded, and the program is shown the peer.
//!
//! Differences: A refused connection is not reported to the program as ECONNABORTED, which ends simple servers. accept(2) itself
//! waits for the rest of an incomplete header, only [a moment](MAX_WAITS), because there is no header waiter. getpeername(2)
//! returns the client, too; after exec(3) it returns the peer, because only forked processes share the table's memory.
//! LIBPROXYPROTO_DEBUG writes the same lines to standard error.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use peername_identity::{HeaderPolicy, Network, Policy, SourcePolicy, Table};
use peername_preload_common::environment;
use peername_preload_common::kernel::{self, SOCK_CLOEXEC, SOCK_DGRAM};
use peername_preload_common::socket::Socket;

use crate::sweep;

/// Whether LD_PRELOAD lists the library under the name `libproxyproto.so`.
pub(crate) fn is_requested() -> bool {
    environment::is_preloaded(b"libproxyproto.so")
}

/// Creates a table for this process and those that it will fork.
pub(crate) fn create_table() -> Option<(&'static [AtomicU64], Table<'static>)> {
    let words = kernel::map_fresh(Table::size(SLOTS)).ok()?;
    let table = Table::new(words)?;
    let all_networks = [
        Network::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0)?,
        Network::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0)?,
    ];
    let policy = Policy {
        judged_by_waiter: false,
        header_required: environment::variable(b"LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER").is_some(),
        all_ports: true,
        show_destination: false,
        headers: HeaderPolicy::default(),
        sources: SourcePolicy::Any,
        max_header: MAX_HEADER,
        namespace: own_namespace(),
        listing: sweep::find_listing(),
    };
    table.settings().write(policy, &all_networks, NO_PASS);
    let verbose = environment::variable(b"LIBPROXYPROTO_DEBUG").map_or(0, |_| VERBOSE);
    FLAGS.store(STANDALONE | verbose | versions(), Ordering::Relaxed);
    Some((words, table))
}

/// Whether this process has no header waiter.
pub(crate) fn is_standalone() -> bool {
    FLAGS.load(Ordering::Relaxed) & STANDALONE != 0
}

/// Whether connections are logged to standard error (LIBPROXYPROTO_DEBUG).
pub(crate) fn is_verbose() -> bool {
    FLAGS.load(Ordering::Relaxed) & VERBOSE != 0
}

/// Whether the address in this header is used: LIBPROXYPROTO_VERSION does not exclude the header's version.
pub(crate) fn accepts_version(header: &[u8]) -> bool {
    let version = if header.first() == Some(&b'P') { 1 } else { 2 };
    !is_standalone() || FLAGS.load(Ordering::Relaxed) & version != 0
}

/// Returns the bits of the accepted versions, as LIBPROXYPROTO_VERSION has them: 1, 2 or their sum; both by default.
fn versions() -> u8 {
    let text = environment::variable(b"LIBPROXYPROTO_VERSION");
    let value = text.map_or(3, environment::atoi);
    // Numbers outside of a byte are clamped to it, before the two bits are read.
    u8::try_from(value.clamp(0, 255)).unwrap_or_default() & 3
}

fn own_namespace() -> u64 {
    let Ok(fd) = kernel::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0) else {
        return 0;
    };
    let namespace = Socket(fd).namespace();
    kernel::close(fd);
    namespace
}

/// Bits: none if there is a header waiter; else STANDALONE, one for each accepted version (1, 2), and VERBOSE with
/// LIBPROXYPROTO_DEBUG.
static FLAGS: AtomicU8 = AtomicU8::new(0);
const STANDALONE: u8 = 0x80;
const VERBOSE: u8 = 0x40;
/// Connections with a client that may be open at once. Pages take memory once they are used.
const SLOTS: usize = 65_536;
/// The largest header that is accepted: the size of the peek buffer on the stack.
const MAX_HEADER: usize = 4096;
/// The maximum number of times that accept(2) waits for more of a header, for [`WAIT_MS`] each.
pub(crate) const MAX_WAITS: u32 = 4;
/// The timeout of each wait in milliseconds.
pub(crate) const WAIT_MS: i64 = 50;
/// The spare arguments of system calls ([`peername_identity::Settings::pass`]), by which those of the library get past the
/// seccomp filter of `peername exec`. Here there is no such filter.
const NO_PASS: [u64; 2] = [0; 2];
const AF_INET: c_int = 2;

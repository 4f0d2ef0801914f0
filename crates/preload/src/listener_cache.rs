//! Caches properties of listeners, so that each accept(2) saves the system calls that query them.
//!
//! The key is the kernel's number of the socket (SO_COOKIE), which is not reused until the next boot. A descriptor is no
//! key: it may have been closed and reused since the last call, and the library does not see every close(2). The cached
//! properties can't change: the protocol and the network namespace. The port can, by listen(2) alone, which
//! [clears](forget) the cache.

use core::sync::atomic::{AtomicU64, Ordering};

use peername_identity::Settings;
use peername_preload_common::socket::{Protocol, Socket};

/// Fast path: whether the listener is a TCP socket in the header waiter's network namespace, and on a covered port, as
/// nearly all are. If not, each connection has to be queried.
pub(crate) fn is_usual(settings: Settings<'_>, listener: Socket) -> bool {
    let Some((cookie, entry)) = listener.cookie().and_then(|c| Some((c, entry(c)?))) else {
        return false;
    };
    if entry.load(Ordering::Relaxed) == cookie {
        return true;
    }
    let usual = query(settings, listener);
    if usual {
        entry.store(cookie, Ordering::Relaxed);
    }
    usual
}

/// Clears the cache: a socket is about to listen, perhaps not for the first time and at another port.
pub(crate) fn forget() {
    for entry in &USUAL {
        entry.store(NO_COOKIE, Ordering::Relaxed);
    }
}

fn query(settings: Settings<'_>, listener: Socket) -> bool {
    let expects = |own: core::net::SocketAddr| settings.covers(own.port());
    listener.local().is_some_and(expects)
        && listener.protocol() == Some(Protocol::Tcp)
        && listener.namespace() == settings.policy().namespace
}

fn entry(cookie: u64) -> Option<&'static AtomicU64> {
    USUAL.get(usize::try_from(cookie & INDEX_MASK).ok()?)
}

/// Cookies of usual listeners, a direct-mapped cache: of two cookies with the same index, the later accept(2) evicts the
/// other.
static USUAL: [AtomicU64; 64] = [const { AtomicU64::new(NO_COOKIE) }; 64];
const INDEX_MASK: u64 = 63;
/// Cookies count up from 1.
const NO_COOKIE: u64 = 0;

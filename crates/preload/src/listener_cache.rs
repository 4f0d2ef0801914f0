//! Caches properties of listeners, so that each accept(2) saves the system calls that query them.
//!
//! The key is the kernel's number of the socket (SO_COOKIE), which is not reused until the next boot. A descriptor is no
//! key: it may have been closed and reused since the last call, and the library does not see every close(2). Of the cached
//! properties, the protocol and the network namespace can't change. The port can, but only by listen(2), which
//! [clears](clear) the cache.

use core::sync::atomic::{AtomicU64, Ordering};

use peername_identity::Settings;
use peername_preload_common::socket::{Protocol, Socket};

/// Fast path: whether the listener is a TCP socket in the header waiter's network namespace, and on a covered port, as
/// nearly all are. The properties of other listeners' connections have to be queried one by one.
pub(crate) fn is_covered_tcp(settings: Settings<'_>, listener: Socket) -> bool {
    let Some(cookie) = listener.cookie() else {
        return false;
    };
    let Some(entry) = entry(cookie) else {
        return false;
    };
    if entry.load(Ordering::Relaxed) == cookie {
        return true;
    }
    let is_covered_tcp = query(settings, listener);
    if is_covered_tcp {
        entry.store(cookie, Ordering::Relaxed);
    }
    is_covered_tcp
}

/// Clears the cache. Call it when a socket is about to listen: it may have listened before, at another port.
pub(crate) fn clear() {
    for entry in &COVERED_TCP {
        entry.store(NO_COOKIE, Ordering::Relaxed);
    }
}

fn query(settings: Settings<'_>, listener: Socket) -> bool {
    listener
        .local()
        .is_some_and(|local| settings.covers(local.port()))
        && listener.protocol() == Some(Protocol::Tcp)
        && listener.namespace() == settings.policy().namespace
}

fn entry(cookie: u64) -> Option<&'static AtomicU64> {
    COVERED_TCP.get(usize::try_from(cookie & INDEX_MASK).ok()?)
}

/// The cookies of listeners for which [`is_covered_tcp`] is true, in a direct-mapped cache: of two cookies with the same index,
/// that of the later accept(2) evicts the other.
static COVERED_TCP: [AtomicU64; 64] = [const { AtomicU64::new(NO_COOKIE) }; 64];
const INDEX_MASK: u64 = 63;
/// Cookies count up from 1.
const NO_COOKIE: u64 = 0;

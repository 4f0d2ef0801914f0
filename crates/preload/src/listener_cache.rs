//! Caches properties of listeners, so that the kernel is not asked again at each accept(2).
//!
//! A descriptor tells nothing: it may be another socket's since the last call, and not every close(2) can be
//! seen from here. The kernel's number of a socket (SO_COOKIE) is not used again until the next boot, and what
//! is remembered by it can't change: that it is a TCP socket, and in which network namespace. Its port can, by
//! listen(2) alone, which [forgets](forget) all.

use core::sync::atomic::{AtomicU64, Ordering};

use peername_identity::Settings;
use peername_preload_common::socket::{Protocol, Socket};

/// Whether it is as nearly all are: of TCP, in the header waiter's network namespace, and its connections begin
/// with a header. If not, each connection has to be asked.
pub(crate) fn is_usual(settings: Settings<'_>, listener: Socket) -> bool {
    let Some((cookie, place)) = listener.cookie().and_then(|c| Some((c, place(c)?))) else {
        return false;
    };
    if place.load(Ordering::Relaxed) == cookie {
        return true;
    }
    let usual = ask(settings, listener);
    if usual {
        place.store(cookie, Ordering::Relaxed);
    }
    usual
}

/// Clears the cache: a socket is about to listen, perhaps not for the first time and at another port.
pub(crate) fn forget() {
    for place in &USUAL {
        place.store(NO_COOKIE, Ordering::Relaxed);
    }
}

fn ask(settings: Settings<'_>, listener: Socket) -> bool {
    let expects = |own: core::net::SocketAddr| settings.covers(own.port());
    listener.local().is_some_and(expects)
        && listener.protocol() == Some(Protocol::Tcp)
        && listener.namespace() == settings.policy().namespace
}

fn place(cookie: u64) -> Option<&'static AtomicU64> {
    USUAL.get(usize::try_from(cookie & PLACES_MASK).ok()?)
}

/// Cookies of usual listeners. Of two that belong to one place, the one that has accepted last is known.
static USUAL: [AtomicU64; 64] = [const { AtomicU64::new(NO_COOKIE) }; 64];
const PLACES_MASK: u64 = 63;
/// Cookies count up from 1.
const NO_COOKIE: u64 = 0;

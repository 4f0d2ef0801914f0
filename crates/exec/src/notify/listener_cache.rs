//! Caches properties of the program's listeners. No descriptor is kept: the program must be able to free their ports.

use std::collections::HashMap;

use peername_identity::Settings;
use peername_sys::ipc::foreign_fd::ForeignFd;
use peername_sys::tcp::foreign_listener::ForeignListener;
use peername_sys::tcp::socket_info;

/// The network namespaces of known TCP listeners, by socket cookie (SO_COOKIE), which no other TCP socket gets. (A socket that
/// an MPTCP listener accepts may have the cookie of its listener.) The namespace of a socket can't change, so it is queried
/// once.
#[derive(Debug, Default)]
pub(super) struct ListenerCache(HashMap<u64, u64>);

impl ListenerCache {
    /// Checks the descriptor of an accept(2). `None` unless it is a listener that expects headers.
    pub(super) fn check(
        &mut self,
        settings: Settings<'_>,
        socket: ForeignFd,
    ) -> Option<ForeignListener> {
        let is_covered = |listener: &ForeignListener| settings.covers(listener.addr.port());
        let cookie = socket_info::cookie(&socket).ok()?;
        if let Some(&namespace) = self.0.get(&cookie) {
            return ForeignListener::from_known_fd(socket, Some(namespace)).filter(is_covered);
        }
        let listener = ForeignListener::from_fd(socket).filter(is_covered)?;
        if settings.policy().header_required {
            listener.defer_accept();
        }
        if let Some(namespace) = listener.netns_cookie {
            self.insert(cookie, namespace);
        }
        Some(listener)
    }

    fn insert(&mut self, cookie: u64, namespace: u64) {
        if self.0.len() >= MAX_CACHED_LISTENERS {
            self.0.clear();
        }
        self.0.insert(cookie, namespace);
    }
}

/// The capacity of the cache, which is cleared when it is full. A program with more listeners examines them again.
const MAX_CACHED_LISTENERS: usize = 1024;

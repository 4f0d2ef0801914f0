//! The program's listeners, of which we keep no descriptor: their ports are the program's to free.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use peername_identity::Settings;
use peername_sys::tcp::foreign_listener::ForeignListener;
use peername_sys::tcp::socket_info;

/// Those that were looked at before, by the kernel's number (SO_COOKIE), which no other socket gets: what can't
/// change about them is not asked again.
#[derive(Debug, Default)]
pub(super) struct Listeners(HashMap<u64, u64>);

impl Listeners {
    /// Looks at the descriptor of an accept(2). `None` if it is none of a listener that expects headers.
    pub(super) fn look(
        &mut self,
        settings: Settings<'_>,
        socket: OwnedFd,
    ) -> Option<ForeignListener> {
        let expects = |listening: &ForeignListener| settings.covers(listening.addr.port());
        let cookie = socket_info::cookie(&socket).ok()?;
        if let Some(&namespace) = self.0.get(&cookie) {
            return ForeignListener::from_known_fd(socket, Some(namespace)).filter(expects);
        }
        let listening = ForeignListener::from_fd(socket).filter(expects)?;
        if settings.policy().header_required {
            listening.defer_accept();
        }
        if let Some(namespace) = listening.netns_cookie {
            self.keep(cookie, namespace);
        }
        Some(listening)
    }

    fn keep(&mut self, cookie: u64, namespace: u64) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(cookie, namespace);
    }
}

/// A program that opens listeners all the time has closed most of them.
const MOST: usize = 1024;

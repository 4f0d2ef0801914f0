//! Calls of accept(2) that wait for a connection.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use peername_sys::epoll::{Epoll, When};
use peername_sys::listening::Listening;
use peername_sys::pidfd::Process;
use peername_sys::seccomp::AddressBuffer;

use super::ledger::Line;
use super::supervisor::Token;

/// A call of accept(2) or accept4(2).
#[derive(Debug)]
pub(super) struct Accepting {
    pub(super) id: u64,
    pub(super) tid: u32,
    /// The thread; readable once it has ended.
    pub(super) thread: Process,
    pub(super) listening: Listening,
    pub(super) peer: AddressBuffer,
    /// How the new socket is wanted.
    pub(super) nonblocking: bool,
    pub(super) close_on_exec: bool,
    /// Where it stands in the ledger.
    pub(super) line: Line,
}

/// Those that wait. A listening socket is held by us only while somebody waits on it: longer, and its port
/// would stay taken after the program has closed it.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// By serial number: who has waited longest comes first.
    all: BTreeMap<u64, Accepting>,
    serial: u64,
}

impl Waits {
    /// Lets a call wait.
    ///
    /// # Errors
    ///
    /// The call, where the kernel has no room for watching it.
    pub(super) fn hold(
        &mut self,
        epoll: &Epoll,
        wait: Accepting,
    ) -> std::result::Result<(), Box<Accepting>> {
        self.serial += 1;
        let (ready, over) = (Token::Wait(self.serial), Token::End(self.serial));
        if epoll
            .watch(&wait.listening, ready.into(), When::Ready)
            .is_err()
        {
            return Err(Box::new(wait));
        }
        if epoll.watch(&wait.thread, over.into(), When::Ready).is_err() {
            let _ = epoll.forget(&wait.listening);
            return Err(Box::new(wait));
        }
        self.all.insert(self.serial, wait);
        Ok(())
    }

    /// Takes it back.
    pub(super) fn take(&mut self, epoll: &Epoll, serial: u64) -> Option<Accepting> {
        let wait = self.all.remove(&serial)?;
        // The open files live on in the program, so closing ours would not end the watch.
        let _ = epoll.forget(&wait.listening);
        let _ = epoll.forget(&wait.thread);
        Some(wait)
    }

    /// The first that waits at this address.
    pub(super) fn at(&self, addr: SocketAddr) -> Option<u64> {
        let mut all = self.all.iter();
        all.find_map(|(&serial, wait)| (wait.listening.addr == addr).then_some(serial))
    }

    /// Those of which `is_stale` says so.
    pub(super) fn stale(&self, is_stale: impl Fn(&Accepting) -> bool) -> Vec<u64> {
        let stale = self.all.iter().filter(|(_, wait)| is_stale(wait));
        stale.map(|(&serial, _)| serial).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

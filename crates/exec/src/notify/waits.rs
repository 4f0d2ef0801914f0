//! Calls of accept(2) that wait for a connection.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;

use peername_sys::SyscallError;
use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::process::pidfd::PidFd;
use peername_sys::seccomp::AddressBuffer;
use peername_sys::tcp::foreign_listener::ForeignListener;

use super::ledger::Line;
use super::supervisor::Token;

/// A call of accept(2) or accept4(2).
#[derive(Debug)]
pub(super) struct Accepting {
    pub(super) id: u64,
    pub(super) tid: u32,
    /// The thread; readable once it has ended.
    pub(super) thread: Rc<PidFd>,
    /// The listening socket's number there, and its address.
    pub(super) number: RawFd,
    pub(super) listener: SocketAddr,
    pub(super) peer: AddressBuffer,
    /// How the new socket is wanted.
    pub(super) nonblocking: bool,
    pub(super) close_on_exec: bool,
    /// Where it stands in the ledger.
    pub(super) line: Line,
}

/// Those that wait.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// By serial number: who has waited longest comes first.
    all: BTreeMap<u64, Waiting>,
    serial: u64,
}

#[derive(Debug)]
struct Waiting {
    call: Accepting,
    /// Becomes readable when the listener does. It does not keep it open, as a descriptor of ours would:
    /// a port must be free once the program has closed it, even if we have not noticed that the call is
    /// over. Being one call's own, it takes its watch with it when it goes.
    watch: Epoll,
}

impl Waits {
    /// Lets a call wait at its listener.
    ///
    /// # Errors
    ///
    /// The call, where the kernel has no room for watching it.
    pub(super) fn hold(
        &mut self,
        epoll: &Epoll,
        call: Accepting,
        listening: &ForeignListener,
    ) -> Result<(), Box<Accepting>> {
        self.serial += 1;
        let (ready, over) = (Token::Wait(self.serial), Token::End(self.serial));
        let watch = || {
            let watch = Epoll::new()?;
            watch.add(listening, 0, Interest::Readable)?;
            epoll.add(&watch, ready.into(), Interest::Readable)?;
            epoll.add(&*call.thread, over.into(), Interest::Readable)?;
            Ok::<_, SyscallError>(watch)
        };
        match watch() {
            Ok(watch) => {
                self.all.insert(self.serial, Waiting { call, watch });
                Ok(())
            }
            Err(_) => Err(Box::new(call)),
        }
    }

    /// Takes it back.
    pub(super) fn take(&mut self, epoll: &Epoll, serial: u64) -> Option<Accepting> {
        let Waiting { call, watch } = self.all.remove(&serial)?;
        let _ = epoll.delete(&watch);
        let _ = epoll.delete(&*call.thread);
        Some(call)
    }

    /// The first that waits at this address.
    pub(super) fn at(&self, listener: SocketAddr) -> Option<u64> {
        let mut all = self.all.iter();
        all.find_map(|(&serial, wait)| (wait.call.listener == listener).then_some(serial))
    }

    /// Those of which `is_stale` says so.
    pub(super) fn stale(&self, is_stale: impl Fn(&Accepting) -> bool) -> Vec<u64> {
        let stale = self.all.iter().filter(|(_, wait)| is_stale(&wait.call));
        stale.map(|(&serial, _)| serial).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

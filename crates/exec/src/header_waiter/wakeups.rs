//! Wakes listeners for ready connections, and tells when that is not possible.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use peername_identity::Counter;
use peername_sys::event::epoll::Readiness;
use peername_sys::process::stderr::try_write_line;

use super::wakeup_connection::WakeupConnection;
use super::{HeaderWaiter, ListenerAddr, WAKE_AGAIN_AFTER};
use crate::header_peek::refuse;

impl HeaderWaiter {
    /// Makes the listener readable, for one ready connection. If none of the program's listeners listens there any more,
    /// all ready connections of that address are refused.
    pub fn wake_listener(&mut self, listener: ListenerAddr) {
        if !self.listeners.listen_at(listener) {
            return self.refuse_ready(listener);
        }
        match WakeupConnection::open(listener.addr, self.table.settings().wakeup_ports()) {
            Ok(wakeup) => self.keep_wakeup(wakeup),
            // It listens, so a firewall refuses, or it is bound to a device.
            Err(error) if error.source.kind() == ErrorKind::ConnectionRefused => {
                return self.refuse_unreachable(listener);
            }
            // Out of ports or descriptors, or no route to the address: retried later.
            Err(_) => {}
        }
        let queue = self.ready.get_mut(&listener);
        let silent = queue.and_then(|queue| queue.iter_mut().find(|ready| ready.woken.is_none()));
        if let Some(ready) = silent {
            ready.woken = Some(Instant::now());
        }
    }

    fn keep_wakeup(&mut self, wakeup: WakeupConnection) {
        let id = self.new_id();
        if self
            .epoll
            .add(wakeup.socket(), id, wakeup.interest())
            .is_ok()
        {
            self.wakeups.insert(id, wakeup);
        }
    }

    pub(super) fn drive_wakeup(&mut self, found: Readiness) {
        let id = found.token;
        let Some(wakeup) = self.wakeups.get_mut(&id) else {
            return;
        };
        if wakeup.drive(found) {
            let (socket, interest) = (wakeup.socket(), wakeup.interest());
            let _ = self.epoll.modify(socket, id, interest);
        } else {
            self.wakeups.remove(&id);
        }
    }

    /// Retries the wake-up of listeners with ready connections that were not taken, although no wake-up connection is in
    /// their accept backlog.
    pub(super) fn wake_again(&mut self) {
        let due = Instant::now().checked_sub(WAKE_AGAIN_AFTER);
        let unresponsive: Vec<ListenerAddr> = self
            .ready
            .iter_mut()
            .filter(|(listener, _)| {
                !self
                    .wakeups
                    .values()
                    .any(|wakeup| wakeup.is_for(listener.addr))
            })
            .filter_map(|(&listener, queue)| {
                let late = queue
                    .iter_mut()
                    .find(|ready| ready.woken < due && ready.woken.is_some())?;
                late.woken = None;
                Some(listener)
            })
            .collect();
        unresponsive
            .into_iter()
            .for_each(|listener| self.wake_listener(listener));
        self.postpone_wakeups();
        self.log_unanswered();
    }

    /// Logs that a wake-up connection gets no answer, so that connections with a complete header wait.
    fn log_unanswered(&mut self) {
        let now = Instant::now();
        let is_recent = self
            .unanswered_logged
            .is_some_and(|at| now < at + UNANSWERED_AFTER);
        let unanswered = self.wakeups.values().find(|wakeup| {
            wakeup
                .unanswered_since()
                .is_some_and(|since| since + UNANSWERED_AFTER <= now)
        });
        if let Some(wakeup) = unanswered.filter(|_| !is_recent) {
            self.unanswered_logged = Some(now);
            try_write_line(&format!(
                "peername: clients wait: the server at {} answers no connection of this host. Its accept backlog is full, or a \
                 firewall drops them (let its INPUT accept `-i lo`)",
                wakeup.listener()
            ));
        }
    }

    /// Postpones the next check of listeners with a wake-up connection that is still in the accept backlog: another one is
    /// not needed.
    fn postpone_wakeups(&mut self) {
        let now = Instant::now();
        for ready in self.ready.values_mut().flatten() {
            if ready.woken.is_some_and(|at| at + WAKE_AGAIN_AFTER <= now) {
                ready.woken = Some(now);
            }
        }
    }

    fn refuse_ready(&mut self, listener: ListenerAddr) {
        let queue = self.ready.remove(&listener).into_iter().flatten();
        queue.for_each(|ready| refuse(ready.connection));
    }

    fn refuse_unreachable(&mut self, listener: ListenerAddr) {
        for ready in self.ready.remove(&listener).into_iter().flatten() {
            self.refuse(ready.connection, Counter::ListenerUnreachable);
        }
    }
}

/// After this time without an answer to a wake-up connection the log says so, and again after as long.
const UNANSWERED_AFTER: Duration = Duration::from_secs(5);

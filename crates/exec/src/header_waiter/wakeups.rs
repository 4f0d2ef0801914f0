//! Wakes listeners for ready connections, and logs if a listener does not answer.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::mem;
use std::time::Instant;

use peername_identity::Counter;
use peername_sys::SyscallError;
use peername_sys::event::epoll::Readiness;

use super::header_peek::close_with_reset;
use super::ready_connection::{ReadyConnection, WAKE_AGAIN_AFTER};
use super::wakeup_connection::{UNANSWERED_AFTER, WakeupConnection, is_refusal};
use super::{HeaderWaiter, ListenerAddr};
use crate::stderr_line::try_write_line;

impl HeaderWaiter {
    /// Makes the listener readable, for one ready connection for which it was not woken; does nothing if there is none. If the
    /// program has no listener at the address any more, all ready connections of that address are refused.
    pub(crate) fn wake_listener(&mut self, listener: ListenerAddr) {
        let settings = self.table.settings();
        if self.first_unwoken(listener).is_none() {
            return;
        }
        if !self.listeners.has_listener_at(listener) {
            return self.refuse_ready(listener, Counter::ListenerClosed);
        }
        let Some(ready) = self.first_unwoken(listener) else {
            return;
        };
        ready.woken = Some(Instant::now());
        match WakeupConnection::open(listener, &ready.admitted.connection, settings) {
            Ok(wakeup) => {
                if wakeup.is_established() {
                    self.note_reachable(listener);
                } else {
                    self.note_unanswered(listener, wakeup.opened_at);
                }
                self.keep_wakeup(wakeup);
            }
            Err(error) => self.note_failure(listener, &error),
        }
    }

    /// Ends the time for which the listener could not be woken.
    fn note_reachable(&mut self, listener: ListenerAddr) {
        for ready in self.ready.get_mut(&listener).into_iter().flatten() {
            ready.unreachable_since = None;
            ready.unanswered_since = None;
        }
    }

    /// Begins the time for which the listener does not answer, unless it has begun.
    fn note_unanswered(&mut self, listener: ListenerAddr, since: Instant) {
        let queue = self.ready.get_mut(&listener);
        if let Some(oldest) = queue.and_then(VecDeque::front_mut) {
            oldest.unanswered_since.get_or_insert(since);
        }
    }

    /// Whether a wake-up connection is established, and in the accept backlog of this listener.
    fn has_established_wakeup(&self, listener: ListenerAddr) -> bool {
        let mut wakeups = self.wakeups.values();
        wakeups.any(|wakeup| wakeup.listener == listener && wakeup.is_established())
    }

    /// Refuses the ready connections of a listener that can't be woken: at once if the wake-up connection was refused, because
    /// the program listens there, so a firewall refuses. Else, if ports or descriptors have run out, or there is no route, the
    /// wake-up is retried for a while. That this host can connect is certain while another wake-up connection is established.
    fn note_failure(&mut self, listener: ListenerAddr, error: &SyscallError) {
        if !is_refusal(error) {
            if self.has_established_wakeup(listener) {
                return;
            }
            let (queue, now) = (self.ready.get_mut(&listener), Instant::now());
            let Some(oldest) = queue.and_then(VecDeque::front_mut) else {
                return;
            };
            let since = *oldest.unreachable_since.get_or_insert(now);
            if since + UNANSWERED_AFTER > now {
                return;
            }
            if self.unreachable_log.pass().is_some() {
                try_write_line(&format!(
                    "peername: this host can't connect to the server at {}, so clients are refused: {error}{}",
                    listener.addr,
                    advice(error)
                ));
            }
        }
        self.refuse_ready(listener, Counter::ListenerUnreachable);
    }

    /// The oldest ready connection for which this listener was not woken.
    fn first_unwoken(&mut self, listener: ListenerAddr) -> Option<&mut ReadyConnection> {
        let queue = self.ready.get_mut(&listener)?;
        queue.iter_mut().find(|ready| ready.woken.is_none())
    }

    fn keep_wakeup(&mut self, wakeup: WakeupConnection) {
        let id = self.new_id();
        let added = self.epoll.add(&wakeup.socket, id, wakeup.interest());
        if added.is_ok() {
            self.wakeups.insert(id, wakeup);
        }
    }

    pub(super) fn drive_wakeup(&mut self, event: Readiness) {
        let id = event.token;
        let Some(wakeup) = self.wakeups.get_mut(&id) else {
            return;
        };
        let (listener, driven) = (wakeup.listener, wakeup.drive(event));
        match driven {
            Ok(true) => {
                let _ = self.epoll.modify(&wakeup.socket, id, wakeup.interest());
                if wakeup.is_established() {
                    self.note_reachable(listener);
                }
                return;
            }
            Ok(false) => {
                let opened_at = wakeup.opened_at;
                self.note_accepted(listener, opened_at);
            }
            Err(_) => {}
        }
        self.wakeups.remove(&id);
        // A wake-up connection without an answer is logged by `log_unanswered`: the accept backlog may be full. It is opened again,
        // until `refuse_unanswered` ends that. If the listener was closed meanwhile, `wake_again` refuses its connections, unless
        // it is opened again before.
        if let Err(error) = driven
            && error.source.kind() != ErrorKind::TimedOut
            && self.listeners.has_listener_at(listener)
        {
            self.note_failure(listener, &error);
        }
    }

    /// Notes that a wake-up connection that was opened at this time was accepted. An accept backlog is a queue, so one that was
    /// opened before and is still open is in the backlog of another listener at the address, as of a process that hangs.
    fn note_accepted(&mut self, listener: ListenerAddr, opened_at: Instant) {
        self.note_reachable(listener);
        let queue = self.ready.get_mut(&listener);
        if let Some(oldest) = queue.and_then(VecDeque::front_mut) {
            oldest.is_wakeup_missed = true;
        }
        for wakeup in self.wakeups.values_mut() {
            wakeup.is_passed_over |= wakeup.listener == listener && wakeup.opened_at < opened_at;
        }
    }

    /// Retries the wake-up of listeners with ready connections that were not taken.
    ///
    /// While connections are taken, each that has no wake-up connection in a backlog that moves gets another one. Otherwise the
    /// listener gets one at a time, and none for a while after one has reached an accept backlog, or was opened without an answer.
    /// After that another one asks whether the backlog is full still, because the kernel's retries get rarer, or reaches another
    /// listener at the address. A program that accepts until EAGAIN takes all ready connections at one wake-up.
    pub(super) fn wake_again(&mut self) {
        let now = Instant::now();
        self.refuse_unanswered(now);
        self.close_passed_over(now);
        let overdue: Vec<_> = self
            .ready
            .iter()
            .map(|(&listener, queue)| {
                let overdue = queue.iter().filter(|ready| ready.is_overdue(now));
                (listener, overdue.count())
            })
            .filter(|&(_, overdue)| overdue > 0)
            .collect();
        for (listener, overdue) in overdue {
            self.wake_overdue(listener, overdue, now);
        }
        self.postpone_overdue(now);
        self.log_unanswered(now);
        self.log_missed();
    }

    /// Retries the wake-up of a listener with so many overdue connections.
    fn wake_overdue(&mut self, listener: ListenerAddr, overdue: usize, now: Instant) {
        let Some(oldest) = self.ready.get_mut(&listener).and_then(VecDeque::front_mut) else {
            return;
        };
        let at_listener =
            |wakeup: &&WakeupConnection| wakeup.listener == listener && !wakeup.is_passed_over;
        let mut wakeups = self.wakeups.values().filter(at_listener);
        let unwoken = overdue.saturating_sub(wakeups.clone().count());
        if unwoken > 0 {
            let is_first_retry = oldest.missed_wakeups == 0;
            oldest.count_missed_wakeup();
            let retries = if is_first_retry {
                unwoken.min(MAX_RETRIES)
            } else {
                1
            };
            // More attempts are in vain where ports or descriptors are exhausted.
            let _ = (0..retries).all(|_| self.retry_wakeup(listener, now));
            return;
        }
        let patience = oldest.patience();
        if wakeups.any(|wakeup| wakeup.is_recent(now, patience)) {
            return;
        }
        let in_backlog = self
            .wakeups
            .iter()
            .filter(|(_, wakeup)| at_listener(wakeup) && wakeup.is_established())
            .min_by_key(|(_, wakeup)| wakeup.opened_at)
            .map(|(&id, _)| id);
        oldest.is_wakeup_missed |= in_backlog.is_some();
        oldest.count_missed_wakeup();
        if self.retry_wakeup(listener, now)
            && let Some(replaced) = in_backlog.and_then(|id| self.wakeups.remove(&id))
        {
            replaced.close_with_reset();
        }
    }

    /// Wakes the listener for one of its overdue connections. Returns whether a wake-up connection was opened.
    fn retry_wakeup(&mut self, listener: ListenerAddr, now: Instant) -> bool {
        let before = self.wakeups.len();
        let mut queue = self.ready.get_mut(&listener).into_iter().flatten();
        let Some(ready) = queue.find(|ready| ready.is_overdue(now)) else {
            return false;
        };
        ready.woken = None;
        self.wake_listener(listener);
        self.wakeups.len() > before
    }

    /// Closes the wake-up connections in backlogs that do not move. There would be as many as clients, if a process hangs.
    fn close_passed_over(&mut self, now: Instant) {
        let passed_over = self.wakeups.extract_if(|_, wakeup| {
            wakeup.is_passed_over && !wakeup.is_recent(now, WAKE_AGAIN_AFTER)
        });
        passed_over.for_each(|(_, wakeup)| wakeup.close_with_reset());
    }

    /// Refuses the ready connections of each listener that has answered no wake-up connection for `MAX_UNANSWERED`.
    fn refuse_unanswered(&mut self, now: Instant) {
        let given_up: Vec<_> = self
            .ready
            .iter()
            .filter(|(_, queue)| queue.front().is_some_and(|oldest| oldest.is_given_up(now)))
            .map(|(&listener, _)| listener)
            .filter(|&listener| !self.has_established_wakeup(listener))
            .collect();
        for listener in given_up {
            self.refuse_ready(listener, Counter::ListenerUnreachable);
        }
    }

    /// Logs that a wake-up connection gets no answer, so that connections with a complete header wait.
    fn log_unanswered(&self, now: Instant) {
        let mut wakeups = self.wakeups.values();
        let unanswered = wakeups.find(|wakeup| wakeup.is_long_unanswered(now));
        // The number of suppressed lines means nothing here: it grows with each check, not with each wake-up connection.
        if let Some(wakeup) = unanswered
            && self.unanswered_log.pass().is_some()
        {
            try_write_line(&format!(
                "peername: clients wait: the server at {} answers no connection of this host. Its accept backlog is full, lo is \
                 down, or a firewall drops them (let its INPUT accept `-i lo`; in a unit, see IPAddressDeny=)",
                wakeup.listener.addr
            ));
        }
    }

    /// Logs that wake-up connections wake no process of the program, so that connections with a complete header wait.
    fn log_missed(&self) {
        let is_missed = |ready: &ReadyConnection| ready.missed_wakeups >= MAX_MISSED_WAKEUPS;
        let mut queues = self.ready.iter();
        let missed = queues.find(|(_, queue)| queue.iter().any(is_missed));
        if let Some((listener, _)) = missed
            && self.missed_log.pass().is_some()
        {
            try_write_line(&format!(
                "peername: clients wait: the server at {} takes no connection of this host. It hangs, another program listens \
                 there, too (SO_REUSEPORT), or the server has no descriptor left",
                listener.addr
            ));
        }
    }

    /// Postpones the next wake-up for all connections that are still overdue: a wake-up connection is in the backlog of their
    /// listener, or was just opened for an older connection.
    fn postpone_overdue(&mut self, now: Instant) {
        for ready in self.ready.values_mut().flatten() {
            if ready.is_overdue(now) {
                ready.woken = Some(now);
            }
        }
    }

    /// Refuses all connections, at the end of this process, because an exit alone would close those without unread bytes by FIN.
    /// Calls `log` before the first and after each: the table has room for few refusals that are not logged yet.
    pub(crate) fn refuse_all(&mut self, reason: Counter, mut log: impl FnMut()) {
        log();
        for ready in mem::take(&mut self.ready).into_values().flatten() {
            self.refuse_admitted(ready, reason);
            log();
        }
        for (_, pending) in mem::take(&mut self.pending) {
            self.refuse(pending.connection, reason);
            log();
        }
    }

    fn refuse_ready(&mut self, listener: ListenerAddr, reason: Counter) {
        for ready in self.ready.remove(&listener).into_iter().flatten() {
            self.refuse_admitted(ready, reason);
        }
    }

    fn refuse_admitted(&self, ready: ReadyConnection, reason: Counter) {
        // A connection whose handoff has failed is counted as handed over, so it is closed without a refusal in the log, unless
        // only an operator can remove the reason.
        if !ready.is_counted || reason == Counter::ListenerUnreachable {
            self.refuse(ready.admitted.connection, reason);
        } else {
            close_with_reset(ready.admitted.connection);
        }
    }
}

/// The remedy, if a firewall or a unit's policy can be the reason why this host can't connect.
fn advice(error: &SyscallError) -> &'static str {
    let is_unreachable = matches!(
        error.source.kind(),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable
    );
    if is_unreachable || error.is_permission() {
        " (let the firewall accept connections over lo; in a unit, see SocketBindDeny= and IPAddressDeny=)"
    } else {
        ""
    }
}

/// A program that takes no connection after so many wake-ups is logged: its processes may take each other's a few times.
const MAX_MISSED_WAKEUPS: u32 = 5;
/// The number of wake-ups of a listener that are retried at a time. Each takes some 50 microseconds.
const MAX_RETRIES: usize = 64;

#[cfg(test)]
mod tests;

//! Wakes listeners for ready connections, and logs if a listener does not answer.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::mem;
use std::time::Instant;

use peername_identity::Counter;
use peername_sys::SyscallError;
use peername_sys::event::epoll::Readiness;

use super::header_peek::close_with_reset;
use super::ready_connection::ReadyConnection;
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
                self.note_reachable(listener);
                let queue = self.ready.get_mut(&listener);
                if let Some(oldest) = queue.and_then(VecDeque::front_mut) {
                    oldest.is_wakeup_accepted = true;
                }
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

    /// Retries the wake-up of listeners with ready connections that were not taken: one at a time for each listener, and none
    /// while an earlier wake-up connection is in its accept backlog, or was opened less than [`UNANSWERED_AFTER`] ago. After that
    /// another one asks whether the backlog is full still, because the kernel's retries get rarer. A program that accepts until
    /// EAGAIN takes all ready connections at one wake-up; one that accepts once per event gets a connection per
    /// `WAKE_AGAIN_AFTER`. More wake-ups at once would be thousands of attempts where ports or descriptors are exhausted.
    pub(super) fn wake_again(&mut self) {
        let now = Instant::now();
        self.refuse_unanswered(now);
        let mut unresponsive = Vec::new();
        for (&listener, queue) in &mut self.ready {
            let mut wakeups = self.wakeups.values();
            let is_woken = wakeups
                .any(|wakeup| wakeup.listener == listener && !wakeup.is_long_unanswered(now));
            let overdue = queue.iter_mut().find(|ready| ready.is_overdue(now));
            if let (Some(ready), false) = (overdue, is_woken) {
                ready.woken = None;
                unresponsive.push(listener);
                if let Some(oldest) = queue.front_mut() {
                    let is_accepted = mem::take(&mut oldest.is_wakeup_accepted);
                    oldest.missed_wakeups += u32::from(is_accepted);
                }
            }
        }
        for listener in unresponsive {
            self.wake_listener(listener);
        }
        self.postpone_overdue(now);
        self.log_unanswered(now);
        self.log_missed();
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

    /// Logs that wake-up connections are accepted, but not by the program, so that connections with a complete header wait.
    fn log_missed(&self) {
        let is_missed = |ready: &ReadyConnection| ready.missed_wakeups >= MAX_MISSED_WAKEUPS;
        let mut queues = self.ready.iter();
        let missed = queues.find(|(_, queue)| queue.iter().any(is_missed));
        if let Some((listener, _)) = missed
            && self.missed_log.pass().is_some()
        {
            try_write_line(&format!(
                "peername: clients wait: the server at {} gets no connection of this host. Another program listens there, too \
                 (SO_REUSEPORT), or the server has no descriptor left",
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
    pub(crate) fn refuse_all(&mut self, reason: Counter) {
        for listener in self.ready.keys().copied().collect::<Vec<_>>() {
            self.refuse_ready(listener, reason);
        }
        for (_, pending) in mem::take(&mut self.pending) {
            self.refuse(pending.connection, reason);
        }
    }

    fn refuse_ready(&mut self, listener: ListenerAddr, reason: Counter) {
        for ready in self.ready.remove(&listener).into_iter().flatten() {
            // A connection whose handoff has failed is counted as handed over, so it is closed without a refusal in the log,
            // unless only an operator can remove the reason.
            if !ready.is_counted || reason == Counter::ListenerUnreachable {
                self.refuse(ready.admitted.connection, reason);
            } else {
                close_with_reset(ready.admitted.connection);
            }
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

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use peername_sys::tcp::listener::shrink_backlog;

    use super::*;
    use crate::header_waiter::ready_connection::{MAX_UNANSWERED, WAKE_AGAIN_AFTER};
    use crate::header_waiter::ready_connections::tests::{admitted, listener_addr};
    use crate::header_waiter::sweeper::tests::new_table;

    /// A listener with a full accept backlog, and a ready connection of it, for which it was woken.
    struct FullBacklog {
        waiter: HeaderWaiter,
        client: TcpStream,
        listener: TcpListener,
        _in_backlog: TcpStream,
    }

    impl FullBacklog {
        fn new() -> Self {
            let table = new_table();
            let mut waiter = HeaderWaiter::new(table, Duration::from_secs(1), None).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let at = listener_addr(&listener, table.settings());
            waiter.note_listener(&listener, at);
            let client = TcpStream::connect(at.addr).unwrap();
            let (connection, _) = listener.accept().unwrap();
            shrink_backlog(&listener).unwrap();
            let in_backlog = TcpStream::connect(at.addr).unwrap();

            let ready = ReadyConnection::new(admitted(connection, Counter::Accepted));
            waiter.ready.entry(at).or_default().push_back(ready);
            waiter.wake_listener(at);
            Self {
                waiter,
                client,
                listener,
                _in_backlog: in_backlog,
            }
        }
    }

    /// The kernel retries the first SYN after 1, 3, 7, 15 and 31 seconds.
    #[test]
    fn listener_that_does_not_answer_is_asked_again_after_a_while() {
        let FullBacklog {
            mut waiter,
            listener: _listener,
            _in_backlog,
            ..
        } = FullBacklog::new();
        for (since, expected) in [(WAKE_AGAIN_AFTER, 1), (UNANSWERED_AFTER, 2)] {
            for wakeup in waiter.wakeups.values_mut() {
                wakeup.opened_at -= since;
            }
            for ready in waiter.ready.values_mut().flatten() {
                ready.woken = ready.woken.map(|at| at - since);
            }
            waiter.wake_again();
            assert_eq!(waiter.wakeups.len(), expected);
        }
    }

    #[test]
    fn listener_that_never_answers_is_given_up() {
        let FullBacklog {
            mut waiter,
            mut client,
            listener,
            _in_backlog,
            ..
        } = FullBacklog::new();
        waiter.refuse_unanswered(Instant::now());
        assert_eq!(waiter.counts(), (0, 1));
        let at = listener_addr(&listener, waiter.table.settings());
        waiter.note_reachable(at);
        waiter.refuse_unanswered(Instant::now() + MAX_UNANSWERED);
        assert_eq!(waiter.counts(), (0, 1));
        waiter.note_unanswered(at, Instant::now());
        waiter.refuse_unanswered(Instant::now() + MAX_UNANSWERED);
        assert_eq!(waiter.counts(), (0, 0));
        let refusals = waiter
            .table
            .settings()
            .counter(Counter::ListenerUnreachable);
        assert_eq!(refusals, 1);
        let end = client.read(&mut [0]).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
    }
}

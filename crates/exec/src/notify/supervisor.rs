//! The supervisor's event loop: one thread, which never blocks on a single process.

mod admin;
mod channel;
mod names;
mod pending;
mod serve;

use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use peername_identity::{Counter, OPEN_CHANNEL, RefusalVerbosity, Table};
use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::process::fork;
use peername_sys::process::limits::max_open_files;
use peername_sys::process::namespace::NetworkNamespace;
use peername_sys::process::pidfd::ThreadFd;
use peername_sys::seccomp::{Notification, NotifiedCall, ThreadCache, has_no_process};
use peername_sys::tcp::foreign_listener::ForeignListener;
use peername_sys::{Result, SyscallError};

use super::config::SupervisorConfig;
use super::denial_log::DenialLog;
use super::epoll_token::EpollToken;
use super::inflight_calls::{InflightCall, InflightSlot, SupervisedCalls};
use super::listener_cache::ListenerCache;
use super::pending_accepts::{AcceptCall, PendingAccepts};
use super::refusal_log::RefusalLog;
use super::supervisor_monitor::{FirstProcess, SupervisorMonitor};
use crate::admin::LivenessSocket;
use crate::client_judge::ClientJudge;
use crate::header_waiter::HeaderWaiter;
use crate::header_waiter::request_channels::RequestChannels;

/// The state of the event loop.
#[derive(Debug)]
pub(super) struct Supervisor {
    supervised: SupervisedCalls,
    /// `None` for a container: the agent starts another supervisor.
    monitor: Option<SupervisorMonitor>,
    epoll: Epoll,
    table: Table<'static>,
    waiter: HeaderWaiter,
    /// The channels by which processes with the library reach the header waiter.
    channels: Option<RequestChannels>,
    admin: Option<LivenessSocket>,
    /// For a container: readable once the agent has ended, or asks this process to end.
    stop: Option<OwnedFd>,
    pending: PendingAccepts,
    /// The number of connections that may still be refused or parked in this round of the event loop. After that, other calls
    /// have their turn.
    refusals_left: usize,
    threads: ThreadCache,
    listeners: ListenerCache,
    refusals: RefusalLog,
    /// A buffer for the largest header.
    buffer: Vec<u8>,
    denial_log: DenialLog,
    /// Whether it was logged that no monitor can be started.
    monitor_error_logged: bool,
    judge: Option<Rc<dyn ClientJudge>>,
    /// The calls that are handed back, if this process has not entered the container's network; else `None`.
    handed_back: Option<Vec<HandedBackCall>>,
    /// When pending calls were last checked for interruption by a signal, and the monitor for a failed start.
    stale_checked_at: Instant,
}

/// A call that a supervisor can't answer outside of its container's network. It stays recorded as in flight.
#[derive(Debug)]
pub(crate) struct HandedBackCall {
    pub(crate) call: Notification,
    /// Why this process may not access the calling process. `None` if the call is an accept(2) that expects headers, or its thread
    /// is in no PID namespace below this process's.
    pub(crate) denial: Option<SyscallError>,
    /// The network of the listener of an accept(2), if this process may open it.
    pub(crate) network: Result<Option<NetworkNamespace>>,
}

/// The result of serving an accept(2).
enum ServeOutcome {
    /// The call was answered, or is over.
    Answered,
    /// The call was not answered.
    Unserved(UnservedCall),
}

/// A call of accept(2) that gets no connection now.
struct UnservedCall {
    call: AcceptCall,
    listener_copy: ForeignListener,
    /// Whether the listener has no connection. Otherwise other calls have their turn first.
    is_backlog_empty: bool,
}

impl Supervisor {
    /// Creates the supervisor. `program` is the first process of a program that has to end with the supervisor; `None` for a
    /// container, to which the agent gives another supervisor.
    pub(super) fn new(
        config: &SupervisorConfig,
        supervised: SupervisedCalls,
        program: Option<FirstProcess>,
    ) -> Result<Self> {
        fork::set_thread_name(c"peername-notify");
        supervised.calls.enable_sync_wakeup();
        let &SupervisorConfig {
            table,
            header_timeout,
            ref table_file,
            ref judge,
            warns_of_other_ports,
            verbose,
            ..
        } = config;
        table.settings().set_refusal_verbosity(if verbose {
            RefusalVerbosity::Each
        } else {
            RefusalVerbosity::Throttled
        });
        if let Some(judge) = judge {
            judge.prepare();
        }
        let epoll = Epoll::new()?;
        let mut monitor = program.map(SupervisorMonitor::new);
        let channels = table_file
            .is_some()
            .then(RequestChannels::new)
            .transpose()?;
        if let Some(channels) = &channels {
            epoll.add(channels, EpollToken::Channels.into(), Interest::Readable)?;
        } else if let Some(monitor) = &mut monitor {
            // Only here, without the library: with it, the first accept(2) that the supervisor serves starts the monitor.
            monitor.start(&supervised, &epoll)?;
        }
        let mut waiter = HeaderWaiter::new(table, header_timeout, judge.clone())?;
        if !warns_of_other_ports {
            waiter.ignore_other_ports();
        }
        epoll.add(
            &supervised.calls,
            EpollToken::Calls.into(),
            Interest::Readable,
        )?;
        epoll.add(&waiter, EpollToken::Waiter.into(), Interest::Readable)?;
        Ok(Self {
            supervised,
            monitor,
            epoll,
            table,
            waiter,
            channels,
            admin: None,
            stop: None,
            pending: PendingAccepts::default(),
            refusals_left: MAX_REFUSALS,
            threads: ThreadCache::new(max_open_files()),
            listeners: ListenerCache::default(),
            refusals: RefusalLog::new(table.settings()),
            buffer: vec![0; table.settings().policy().max_header],
            denial_log: DenialLog::default(),
            monitor_error_logged: false,
            judge: judge.clone(),
            handed_back: None,
            stale_checked_at: Instant::now(),
        })
    }

    /// Ends the event loop once `stop` is readable: between two calls, so that none is lost.
    pub(super) fn stop_at(&mut self, stop: OwnedFd) -> Result<()> {
        self.epoll
            .add(&stop, EpollToken::Stop.into(), Interest::Readable)?;
        self.stop = Some(stop);
        Ok(())
    }

    /// Makes [`Supervisor::run`] return at the first call that can't be answered outside of the container's network.
    pub(super) fn hand_back_first_accept(&mut self) {
        self.handed_back = Some(Vec::new());
    }

    /// Runs the event loop: answers calls until no process with the filter is left, or the supervisor is stopped; or until a call
    /// is to be handed back, which is returned.
    pub(super) fn run(mut self) -> Result<Option<HandedBackCall>> {
        let mut events = Vec::new();
        loop {
            // The first one: the others are answered after it, as they are recorded, too.
            let handed_back = self.handed_back.take_if(|calls| !calls.is_empty());
            if let Some(call) = handed_back.into_iter().flatten().next() {
                return Ok(Some(call));
            }
            self.store_gauges();
            self.epoll.wait(self.wait_limit(), &mut events)?;
            self.refusals_left = MAX_REFUSALS;
            for event in events.drain(..) {
                match EpollToken::from(event.token) {
                    EpollToken::Calls if event.readable => self.answer_next(),
                    EpollToken::Calls
                        if event.hung_up && has_no_process(&self.supervised.calls) =>
                    {
                        return Ok(None);
                    }
                    EpollToken::Stop => {
                        let settings = self.table.settings();
                        self.waiter.refuse_all(Counter::SupervisorStopped, || {
                            self.refusals.write_now(settings);
                        });
                        return Ok(None);
                    }
                    EpollToken::MonitorExited => {
                        if let Some(monitor) = &mut self.monitor {
                            monitor.replace(&self.supervised, &self.epoll);
                        }
                    }
                    EpollToken::Channels => self.serve_channels(),
                    EpollToken::Admin => self.serve_admin(),
                    EpollToken::ListenerReady(serial) => self.retry_pending(serial),
                    EpollToken::ThreadExited(serial) => self.drop_pending(serial),
                    EpollToken::Waiter => self.run_waiter()?,
                    EpollToken::Calls => {}
                }
            }
            self.run_due()?;
        }
    }

    /// Does the work that is due at a time, rather than because of an event.
    fn run_due(&mut self) -> Result<()> {
        if self.stale_checked_at.elapsed() >= STALE_CHECK_INTERVAL {
            self.stale_checked_at = Instant::now();
            self.drop_interrupted();
            if let Some(monitor) = &mut self.monitor {
                monitor.retry(&self.supervised, &self.epoll);
            }
        }
        for serial in self.pending.find(|call| is_due(call.deadline)) {
            self.retry_pending(serial);
        }
        if is_due(self.channels_deadline()) {
            self.serve_channels();
        }
        if is_due(self.waiter.next_deadline()) {
            self.run_waiter()?;
        }
        if self.table.settings().claim_sweep() {
            self.waiter.request_sweep();
        }
        self.refusals.write(self.table.settings());
        Ok(())
    }

    /// How long the event loop may wait for events.
    fn wait_limit(&self) -> Option<Duration> {
        let deadlines = [
            self.waiter.next_deadline(),
            self.channels_deadline(),
            self.pending.next_deadline(),
            self.refusals.next_deadline(self.table.settings()),
        ];
        let until_deadline = deadlines.into_iter().flatten().min().map(|deadline| {
            // Rounded up, or the loop would wake before the deadline.
            deadline.saturating_duration_since(Instant::now()) + TIMER_SLACK
        });
        let monitor = self.monitor.as_ref();
        let is_monitor_missing = monitor.is_some_and(SupervisorMonitor::is_missing);
        let has_checks = is_monitor_missing || !self.pending.is_empty();
        let until_check = has_checks.then_some(STALE_CHECK_INTERVAL);
        [until_deadline, until_check].into_iter().flatten().min()
    }

    fn channels_deadline(&self) -> Option<Instant> {
        let channels = self.channels.as_ref();
        channels.and_then(RequestChannels::next_deadline)
    }

    /// Receives the next call, and answers it or adds it to the pending calls.
    fn answer_next(&mut self) {
        let SupervisedCalls { calls, inflight } = &self.supervised;
        let Some(InflightCall { slot, call }) = inflight.receive(calls) else {
            return;
        };
        // A thread makes one call at a time, so its earlier calls are over.
        for serial in self.pending.find(|pending| pending.tid == call.tid) {
            self.drop_pending(serial);
        }
        self.answer_recorded(&call, slot);
    }

    /// Answers the calls that an earlier supervisor has received and not answered.
    pub(super) fn adopt_inflight(&mut self) {
        let recorded: Vec<_> = self.supervised.inflight.iter().collect();
        for recorded in recorded {
            let SupervisedCalls { calls, inflight } = &self.supervised;
            if !calls.is_pending(recorded.call.id) {
                inflight.remove(&recorded.slot);
                continue;
            }
            // The last slot has to be free for the next call, so a call in it fails.
            if !inflight.fail_in_last_slot(&recorded, calls) {
                self.answer_recorded(&recorded.call, recorded.slot);
            }
        }
    }

    fn answer_recorded(&mut self, notification: &Notification, slot: InflightSlot) {
        match notification.call() {
            Ok(call) => self.answer_call(notification, call, slot),
            Err(error) => {
                self.supervised.calls.fail(notification.id, &error);
                self.supervised.inflight.remove(&slot);
            }
        }
    }

    fn answer_call(&mut self, notification: &Notification, call: NotifiedCall, slot: InflightSlot) {
        let Notification { id, tid, .. } = *notification;
        if tid == 0 && self.hands_back(notification, None) {
            return;
        }
        if notification.spare_arguments() == Some(OPEN_CHANNEL)
            && let Some(channels) = &mut self.channels
        {
            let opened = channels.open(&mut self.waiter);
            Self::answer_with_channel(&self.supervised.calls, id, opened);
            return self.supervised.inflight.remove(&slot);
        }
        match call {
            NotifiedCall::Listen { socket } => {
                self.note_listener(notification, socket);
                self.supervised.calls.continue_syscall(id);
            }
            NotifiedCall::Name {
                socket,
                end,
                buffer,
            } => {
                if let Some((_, socket)) = self.descriptor(notification, socket) {
                    self.answer_name(id, &socket, end, buffer);
                } else if self.has_handed_back(id) {
                    return;
                }
            }
            NotifiedCall::Accept {
                listener,
                peer,
                nonblocking,
                close_on_exec,
            } => {
                if let Some((thread, listener_copy)) = self.prepare_accept(notification, listener) {
                    let call = AcceptCall {
                        id,
                        tid,
                        thread,
                        fd_number: listener,
                        listener_addr: (&listener_copy).into(),
                        peer,
                        nonblocking,
                        close_on_exec,
                        deadline: None,
                        slot,
                    };
                    // An earlier supervisor may have seen its listen(2).
                    self.waiter
                        .note_unknown_listener(&listener_copy, call.listener_addr);
                    return self.accept(call, listener_copy);
                } else if self.has_handed_back(id) {
                    return;
                }
            }
        }
        self.supervised.inflight.remove(&slot);
    }

    /// Hands this call back if this process is outside of the container's network. Returns whether it does.
    fn hands_back(&mut self, call: &Notification, listener: Option<&ForeignListener>) -> bool {
        let Some(calls) = &mut self.handed_back else {
            return false;
        };
        calls.push(HandedBackCall {
            call: *call,
            denial: None,
            network: listener.map_or(Ok(None), NetworkNamespace::of_socket),
        });
        true
    }

    fn has_handed_back(&self, id: u64) -> bool {
        let mut handed_back = self.handed_back.iter().flatten();
        handed_back.any(|handed_back| handed_back.call.id == id)
    }

    /// Copies the listener of an accept(2), and starts the monitor. `None` if the call was answered: one of these has failed,
    /// or the listener does not expect headers; or if it is handed back.
    fn prepare_accept(
        &mut self,
        notification: &Notification,
        number: RawFd,
    ) -> Option<(Rc<ThreadFd>, ForeignListener)> {
        let (thread, socket) = self.descriptor(notification, number)?;
        let Some(listener_copy) = self.listeners.check(self.table.settings(), socket) else {
            // The kernel continues the call as if there were no filter.
            self.supervised.calls.continue_syscall(notification.id);
            return None;
        };
        if self.hands_back(notification, Some(&listener_copy)) {
            return None;
        }
        // From now on the program ends with the supervisor.
        if let Some(monitor) = &mut self.monitor
            && let Err(error) = monitor.start(&self.supervised, &self.epoll)
        {
            self.refuse_unmonitored(notification.id, &error);
            return None;
        }
        Some((thread, listener_copy))
    }

    /// Runs the header waiter, and hands over the ready connections.
    fn run_waiter(&mut self) -> Result<()> {
        let ready = self.waiter.process_due()?;
        for &listener in &ready {
            if let Some(serial) = self.pending.oldest_at(listener) {
                self.retry_pending(serial);
            }
        }
        // Does nothing for a listener whose connections were all taken. Those left had no pending call, or one that failed because
        // its listener was closed.
        for listener in ready {
            self.waiter.wake_listener(listener);
        }
        Ok(())
    }
}

fn is_due(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| deadline <= Instant::now())
}

/// The interval of the check for calls that a signal has interrupted (their threads may make no other call), and of the
/// attempts to start a missing monitor.
const STALE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The connections that are refused or parked in a round of the event loop. Each takes some 20 microseconds, so the calls of
/// other listeners wait for a millisecond or two.
const MAX_REFUSALS: usize = 64;
const TIMER_SLACK: Duration = Duration::from_micros(100);

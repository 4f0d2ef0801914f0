//! The supervisor's loop: one thread, which never waits for anybody in particular.

mod serve;
mod token;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use peername_identity::{Identity, Table, shown};
use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::process::daemonize;
use peername_sys::process::pidfd::PidFd;
use peername_sys::seccomp::{
    AddressBuffer, Endpoint, Notification, NotificationListener, NotifiedCall,
};
use peername_sys::tcp::foreign_listener::ForeignListener;
use peername_sys::tcp::socket_info;
use peername_sys::{Errno, Result};

pub(super) use token::Token;

use super::Settings;
use super::guardian::Ward;
use super::ledger::{Ledger, Open};
use super::listeners::Listeners;
use super::monitor::Monitor;
use super::refusals::RefusalLog;
use super::threads::Threads;
use super::waits::{Accepting, Waits};
use crate::attendant::{Attendant, Channel};

/// All that the loop knows.
#[derive(Debug)]
pub(super) struct Supervisor {
    ward: Ward,
    /// There is none as long as every process that accepts has the library: they go on without us.
    monitor: Option<Monitor>,
    epoll: Epoll,
    table: Table<'static>,
    attendant: Attendant,
    /// How processes with the library reach the attendant.
    channel: Option<Channel>,
    waits: Waits,
    threads: Threads,
    listeners: Listeners,
    refusals: RefusalLog,
    /// Room for the largest header.
    buffer: Vec<u8>,
    /// That the program's descriptors can't be had is said once.
    said_denied: bool,
    /// When the calls that wait were last asked about.
    looked: Instant,
}

/// What became of a call.
enum Answer {
    /// It has its answer, or is over.
    Given,
    /// There is nothing to give to it.
    Nothing(Accepting),
}

impl Supervisor {
    /// For `program`, whose first process is `target`.
    pub(super) fn new(
        settings: &Settings,
        calls: NotificationListener,
        ledger: Ledger,
        (program, target): (u32, PidFd),
    ) -> Result<Self> {
        daemonize::set_thread_name(c"peername-notify");
        calls.enable_sync_wakeup();
        let ward = Ward {
            calls,
            ledger,
            program,
            target,
        };
        let &Settings {
            table,
            header_timeout,
            ref library,
            verbose,
        } = settings;
        let epoll = Epoll::new()?;
        let (monitor, channel) = match library {
            Some(_) => (None, Some(Channel::open(table.settings())?)),
            None => (Some(Monitor::start(&ward, &epoll)?), None),
        };
        if let Some(channel) = &channel {
            epoll.add(channel, Token::Channel.into(), Interest::Readable)?;
        }
        let attendant = Attendant::new(table, header_timeout)?;
        epoll.add(&ward.calls, Token::Calls.into(), Interest::Readable)?;
        epoll.add(&attendant, Token::Attendant.into(), Interest::Readable)?;
        Ok(Self {
            ward,
            monitor,
            epoll,
            table,
            attendant,
            channel,
            waits: Waits::default(),
            threads: Threads::default(),
            listeners: Listeners::default(),
            refusals: RefusalLog::new(verbose),
            buffer: vec![0; table.settings().policy().max_header],
            said_denied: false,
            looked: Instant::now(),
        })
    }

    /// Answers until nobody is left to ask.
    pub(super) fn run(mut self) -> Result<()> {
        let mut found = Vec::new();
        loop {
            self.epoll.wait(self.patience(), &mut found)?;
            for event in found.drain(..) {
                match Token::from(event.token) {
                    Token::Calls if event.readable => self.answer()?,
                    Token::Calls if event.hung_up => return Ok(()),
                    Token::Guardian => {
                        if let Some(monitor) = &mut self.monitor {
                            monitor.replace_guardian(&self.ward, &self.epoll)?;
                        }
                    }
                    Token::Channel => self.serve_channel(),
                    Token::Wait(serial) => self.serve_again(serial),
                    Token::End(serial) => self.let_go(serial),
                    Token::Attendant => self.attend()?,
                    Token::Calls => {}
                }
            }
            if self.looked.elapsed() >= LOOK_EVERY {
                self.let_go_of_interrupted();
            }
            if is_due(self.channel.as_ref().and_then(Channel::next_deadline)) {
                self.serve_channel();
            }
            if is_due(self.attendant.next_deadline()) {
                self.attend()?;
            }
            if self.table.settings().claims_sweep() {
                self.attendant.sweep();
            }
            self.refusals.write(self.table.settings());
        }
    }

    /// How long nothing need happen.
    fn patience(&self) -> Option<Duration> {
        let channel = self.channel.as_ref().and_then(Channel::next_deadline);
        let refusals = self.refusals.next_deadline(self.table.settings());
        let due = self.attendant.next_deadline().into_iter();
        let due = due.chain(channel).chain(refusals);
        // Rounded up, or we would be here again before it is time.
        let due = due
            .min()
            .map(|at| at.saturating_duration_since(Instant::now()) + A_BIT);
        let look = (!self.waits.is_empty()).then_some(LOOK_EVERY);
        due.into_iter().chain(look).min()
    }

    /// Takes on the next call and answers it, or lets it wait.
    ///
    /// # Errors
    ///
    /// The monitor can't be started.
    fn answer(&mut self) -> Result<()> {
        // Over already: a signal came first.
        let Ok(notification) = self.ward.calls.receive() else {
            return Ok(());
        };
        let (id, tid) = (notification.id, notification.tid);
        // A thread makes one call at a time.
        let stale = self.waits.stale(|wait| wait.tid == tid);
        stale.into_iter().for_each(|serial| self.let_go(serial));
        match notification.call() {
            Ok(call) => self.answer_call(&notification, call)?,
            Err(error) => self.ward.calls.fail(id, &error),
        }
        Ok(())
    }

    fn answer_call(&mut self, notification: &Notification, call: NotifiedCall) -> Result<()> {
        let Notification { id, tid, .. } = *notification;
        let Some(line) = self.ward.ledger.open(Open { id, tid }) else {
            self.ward.calls.fail(id, &Errno::NOMEM.into());
            return Ok(());
        };
        match call {
            NotifiedCall::Name {
                socket,
                end,
                buffer,
            } => {
                if let Some((_, socket)) = self.descriptor(notification, socket) {
                    self.name(id, &socket, end, buffer);
                }
                self.ward.ledger.close(line);
            }
            NotifiedCall::Accept {
                listener,
                peer,
                nonblocking,
                close_on_exec,
            } => {
                let Some((thread, socket)) = self.descriptor(notification, listener) else {
                    self.ward.ledger.close(line);
                    return Ok(());
                };
                match self.listeners.look(self.table.settings(), socket) {
                    Some(listening) => {
                        self.note_acceptor(Open { id, tid })?;
                        let call = Accepting {
                            id,
                            tid,
                            thread,
                            number: listener,
                            listener: listening.addr,
                            peer,
                            nonblocking,
                            close_on_exec,
                            line,
                        };
                        self.accept(call, &listening);
                    }
                    // Nothing of ours: the kernel goes on as if we were not there.
                    None => {
                        self.ward.calls.continue_syscall(id);
                        self.ward.ledger.close(line);
                    }
                }
            }
        }
        Ok(())
    }

    /// A process accepts that the library does not reach: from now on the program ends with the supervisor.
    fn note_acceptor(&mut self, call: Open) -> Result<()> {
        let monitor = match &mut self.monitor {
            Some(monitor) => monitor,
            none => none.insert(Monitor::start(&self.ward, &self.epoll)?),
        };
        monitor.note(&self.ward, call);
        Ok(())
    }

    fn serve_channel(&mut self) {
        if let Some(channel) = &mut self.channel {
            channel.serve(&mut self.attendant);
        }
    }

    /// A descriptor of the program, and the thread that has it. The call is answered if there is none.
    fn descriptor(&mut self, call: &Notification, number: RawFd) -> Option<(Rc<PidFd>, OwnedFd)> {
        match self.threads.descriptor(&self.ward.calls, call, number) {
            Ok(found) => found,
            Err(error) => {
                if error.is_permission() && !self.said_denied {
                    self.said_denied = true;
                    eprintln!(
                        "peername: can't look into the program, so it can't accept: {error}. An ordinary user needs \
                         kernel.yama.ptrace_scope = 0 for programs with several processes"
                    );
                }
                self.ward.calls.fail(call.id, &error.source);
                None
            }
        }
    }

    fn accept(&mut self, call: Accepting, listening: &ForeignListener) {
        if let Answer::Nothing(call) = self.serve(call, listening) {
            if listening.nonblocking {
                self.fail(call, Errno::AGAIN);
            } else if let Err(call) = self.waits.hold(&self.epoll, call, listening) {
                self.fail(*call, Errno::NOMEM);
            }
        }
    }

    fn name(&self, id: u64, socket: &OwnedFd, end: Endpoint, buffer: AddressBuffer) {
        let Some(identity) = known(self.table, socket) else {
            return self.ward.calls.continue_syscall(id);
        };
        let named = match end {
            Endpoint::Peer => identity.client,
            Endpoint::Local => identity.destination,
        };
        let answer = buffer.capacity().and_then(|room| {
            let addr = shown(named, socket_info::peer_addr(socket)?.is_ipv6());
            match self.ward.calls.is_pending(id) {
                true => buffer.write(addr, room),
                false => Ok(()),
            }
        });
        match answer {
            Ok(()) => self.ward.calls.succeed(id),
            Err(error) => self.ward.calls.fail(id, &error),
        }
    }

    /// Gives a connection to whoever waits at its listener, or lets it wait for somebody.
    fn offer(&mut self, connection: OwnedFd, listener: SocketAddr) {
        match self
            .waits
            .at(listener)
            .and_then(|serial| self.waits.take(&self.epoll, serial))
        {
            Some(call) => _ = self.give_kept(call, connection),
            None => self.attendant.give_back(connection, listener),
        }
    }

    /// Its listener is ready, or broken; or there is a connection for it.
    fn serve_again(&mut self, serial: u64) {
        let Some(call) = self.waits.take(&self.epoll, serial) else {
            return;
        };
        // It may have become another file meanwhile.
        let listening = call.thread.get_fd(call.number).ok();
        let settings = self.table.settings();
        let listening = listening.and_then(|socket| self.listeners.look(settings, socket));
        let Some(listening) = listening.filter(|listening| listening.addr == call.listener) else {
            // EINVAL: it does not listen any more (accept(2)).
            return self.fail(call, Errno::INVAL);
        };
        if let Answer::Nothing(call) = self.serve(call, &listening)
            && let Err(call) = self.waits.hold(&self.epoll, call, &listening)
        {
            self.fail(*call, Errno::NOMEM);
        }
    }

    /// Looks after the connections without a complete header, and hands over those that have got it.
    fn attend(&mut self) -> Result<()> {
        for listener in self.attendant.attend()? {
            match self.waits.at(listener) {
                Some(serial) => self.serve_again(serial),
                None => self.attendant.ring(listener),
            }
        }
        Ok(())
    }

    /// A call is over without an answer.
    fn let_go(&mut self, serial: u64) {
        if let Some(call) = self.waits.take(&self.epoll, serial) {
            self.ward.ledger.close(call.line);
        }
    }

    /// The kernel does not tell when a signal has interrupted a call.
    fn let_go_of_interrupted(&mut self) {
        self.looked = Instant::now();
        let calls = &self.ward.calls;
        let stale = self.waits.stale(|wait| !calls.is_pending(wait.id));
        stale.into_iter().for_each(|serial| self.let_go(serial));
    }

    fn fail(&self, call: Accepting, error: impl Into<io::Error>) {
        self.ward.calls.fail(call.id, &error.into());
        self.ward.ledger.close(call.line);
    }
}

/// Who is at the other end of this socket, if a header has said so.
fn known(table: Table<'_>, socket: &OwnedFd) -> Option<Identity> {
    table.find(socket_info::cookie(socket).ok()?)
}

fn is_due(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| deadline <= Instant::now())
}

/// How soon a call that a signal has interrupted is noticed, if its thread makes no other.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const A_BIT: Duration = Duration::from_micros(100);

//! The agent's event loop: one thread, which starts and watches the supervisors, and answers no call itself.

mod containers;
mod runtimes;
mod stored;
mod watch;

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use peername_identity::Table;
use peername_sys::SyscallError;
use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::event::signals::SignalFd;
use peername_sys::process::pidfd::Signal;
use peername_sys::throttle::RepeatThrottle;

use super::admin::AgentAdmin;
use super::container::Container;
use super::container_supervisor::AgentPolicy;
use super::descriptor_store::{DescriptorStore, StoredDescriptor};
use super::registration::Registration;
use super::runtime_refusal_log::RuntimeRefusalLog;
use crate::stderr_line::try_write_line;
use watch::PolicyWatch;

/// The process of which the agent is a part: its configuration, its service manager, its store.
pub trait AgentHost: Debug {
    /// Reads the policies.
    ///
    /// # Errors
    ///
    /// A text for the log: what is wrong with the policies.
    fn load_policies(&self) -> Result<Vec<AgentPolicy>, String>;

    /// Whether the policies are reloaded when their files change.
    fn watches_policies(&self) -> bool;

    /// The directories to watch for changes of the policies' files.
    fn policy_directories(&self) -> BTreeSet<PathBuf>;

    /// Whether the policies' files are unchanged since the policies were last read, and could be read then.
    fn are_policies_current(&self) -> bool;

    /// Opens another store, which is empty, after the store has ended. `None` if there is none so far.
    ///
    /// # Errors
    ///
    /// A text for the log: why the store can't be opened.
    fn reopen_store(&self) -> Result<Option<Box<dyn DescriptorStore>>, String>;

    /// Notes that the agent serves, after its start or a reload. `status` is a text for people.
    fn ready(&self, status: &str);

    /// Notes that a reload has begun.
    fn reloading(&self);

    /// Repeats the notes that the service manager has not received. Returns after which time to call this again; `None` if it has
    /// received all.
    fn repeat_notes(&self) -> Option<Duration>;
}

/// An error that prevents the agent's start, or ends the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The policies can't be read.
    #[error("{0}")]
    Policies(String),
    /// A system call failed.
    #[error("the agent: {0}")]
    Call(#[from] SyscallError),
}

/// The reason for the agent's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentExit {
    /// SIGTERM or SIGINT. The calls of this number of containers wait for the next agent.
    Stopped(usize),
    /// Another agent has taken over.
    TakenOver,
}

/// The agent.
#[derive(Debug)]
pub struct Agent {
    host: Box<dyn AgentHost>,
    policies: Vec<AgentPolicy>,
    /// The users whose processes may announce containers.
    users: BTreeSet<u32>,
    socket: UnixListener,
    /// When connections are accepted again; `None` while they are accepted.
    accept_at: Option<Instant>,
    signals: SignalFd,
    /// `None` from the end of the store until another one is open.
    store: Option<Box<dyn DescriptorStore>>,
    /// When a store that has ended is opened again.
    reopen_at: Option<Instant>,
    /// Throttles the log of failed attempts at that.
    reopen_failures: RepeatThrottle,
    epoll: Epoll,
    registrations: HashMap<u64, Registration>,
    containers: HashMap<u64, Container>,
    /// The number of the last container or connection, including those of earlier agents.
    last_number: u64,
    refusals: RuntimeRefusalLog,
    admin: Option<AgentAdmin>,
    /// `None` where only SIGHUP reloads the policies.
    watch: Option<PolicyWatch>,
    /// Throttles the log of failed reloads that are tried again.
    load_failures: RepeatThrottle,
}

/// An agent that does not serve yet. All that is likely to fail at the start has been done, so that an earlier agent, which serves
/// meanwhile, is not ended for one that fails.
#[derive(Debug)]
pub struct PreparedAgent {
    host: Box<dyn AgentHost>,
    policies: Vec<AgentPolicy>,
    users: BTreeSet<u32>,
    epoll: Epoll,
    watch: Option<PolicyWatch>,
}

/// Why the policies are reloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReloadCause {
    /// SIGHUP.
    Signal,
    /// Their files have changed, or could not be read before.
    Files,
}

impl PreparedAgent {
    /// Prepares an agent to which processes of `users` may announce containers.
    ///
    /// # Errors
    ///
    /// [`AgentError::Policies`]; EMFILE or ENOSPC of inotify(7), with policies that are watched.
    pub fn new(host: Box<dyn AgentHost>, users: BTreeSet<u32>) -> Result<Self, AgentError> {
        let policies = host.load_policies().map_err(AgentError::Policies)?;
        let epoll = Epoll::new()?;
        let watch = host
            .watches_policies()
            .then(|| watch_policies(&*host, &epoll))
            .transpose()?;
        Ok(Self {
            host,
            policies,
            users,
            epoll,
            watch,
        })
    }

    /// Starts the agent with its listening socket, which is non-blocking, and with the descriptors that an earlier agent has
    /// stored. The policies are read again, as their files may have changed. This process must have one thread only.
    pub fn take_over(
        self,
        socket: OwnedFd,
        store: Box<dyn DescriptorStore>,
        stored: Vec<StoredDescriptor>,
    ) -> Result<Agent, AgentError> {
        let Self {
            host,
            mut policies,
            users,
            epoll,
            mut watch,
        } = self;
        match host.load_policies() {
            Ok(current) => policies = current,
            Err(error) => try_write_line(&format!(
                "peername: {error}; the previous policies stay in force"
            )),
        }
        if let Some(watch) = &mut watch {
            watch.add_directories(&host.policy_directories());
        }
        let signals = SignalFd::open(&[Signal::TERM, Signal::INT, Signal::HUP])?;
        epoll.add(&signals, Token::SIGNALS, Interest::Readable)?;
        epoll.add(&socket, Token::SOCKET, Interest::Readable)?;
        let mut agent = Agent {
            host,
            policies,
            users,
            socket: socket.into(),
            accept_at: None,
            signals,
            store: Some(store),
            reopen_at: None,
            reopen_failures: RepeatThrottle::default(),
            epoll,
            registrations: HashMap::new(),
            last_number: 0,
            containers: HashMap::new(),
            refusals: RuntimeRefusalLog::default(),
            admin: None,
            watch,
            load_failures: RepeatThrottle::default(),
        };
        agent.watch_store()?;
        agent.store_socket();
        agent.adopt(stored);
        Ok(agent)
    }
}

impl Agent {
    /// Answers the process of the admin endpoint from now on, and stores the sum of all counters in `totals`
    /// ([`create_totals`](super::admin::create_totals)).
    pub fn serve_admin(
        &mut self,
        socket: OwnedFd,
        totals: Table<'static>,
    ) -> Result<(), AgentError> {
        let admin = self.admin.insert(AgentAdmin::new(socket, totals)?);
        Ok(self.epoll.add(&*admin, Token::ADMIN, Interest::Readable)?)
    }

    /// Serves until a signal ends the agent, or another agent takes over. When this returns, the supervisors have ended.
    pub fn run(mut self) -> Result<AgentExit, AgentError> {
        self.start_all();
        self.host.ready(&self.status());
        let mut events = Vec::new();
        loop {
            let repeat_after = self.host.repeat_notes();
            let repeat_at = repeat_after.map(|delay| Instant::now() + delay);
            self.epoll.wait(self.wait_limit(repeat_at), &mut events)?;
            for event in events.drain(..) {
                match event.token {
                    Token::SIGNALS => match self.signals.next() {
                        Some(Signal::HUP) => self.reload(ReloadCause::Signal),
                        Some(_) => return Ok(AgentExit::Stopped(self.stop())),
                        None => {}
                    },
                    Token::SOCKET => self.accept(),
                    Token::STORE => {
                        if self.handle_store_event() {
                            self.stop();
                            return Ok(AgentExit::TakenOver);
                        }
                    }
                    Token::ADMIN => {
                        let admin = self.admin.take();
                        self.admin = admin.and_then(AgentAdmin::answer_or_close);
                    }
                    Token::POLICIES => {
                        if let Some(watch) = &mut self.watch {
                            watch.note_events();
                        }
                    }
                    number if self.registrations.contains_key(&number) => {
                        self.receive(number);
                    }
                    number => self.reap_supervisor(number),
                }
            }
            self.run_due()?;
        }
    }

    /// Reads the policies again, and replaces each supervisor by one with the new policies. Connections that wait at a supervisor,
    /// for the rest of their header or for the program, are reset.
    fn reload(&mut self, cause: ReloadCause) {
        let loaded = self.host.load_policies();
        if let Some(watch) = &mut self.watch {
            watch.add_directories(&self.host.policy_directories());
        }
        let is_applied = loaded.is_ok();
        match loaded {
            Ok(policies) => {
                self.load_failures.clear();
                self.host.reloading();
                self.policies = policies;
                self.stop_all();
                self.start_all();
                try_write_line("peername: the policies were reloaded");
            }
            Err(error) => {
                let passes = self.load_failures.passes(&error);
                if !passes && cause == ReloadCause::Files {
                    return;
                }
                self.host.reloading();
                try_write_line(&format!(
                    "peername: {error}; the previous policies stay in force"
                ));
            }
        }
        if let Some(admin) = &mut self.admin {
            admin.report_reload(is_applied);
        }
        self.host.ready(&self.status());
    }

    fn status(&self) -> String {
        let policies = self.policies.iter();
        let names: Vec<_> = policies.map(|policy| policy.name.as_str()).collect();
        let containers = self.containers.len();
        format!("policies: {}; containers: {containers}", names.join(", "))
    }

    /// Does the work that is due at a time, rather than because of an event.
    fn run_due(&mut self) -> Result<(), AgentError> {
        let now = Instant::now();
        if is_due(self.reopen_at, now) {
            self.reopen_store()?;
        }
        if is_due(self.accept_at, now) {
            self.accept_at = None;
            self.epoll
                .add(&self.socket, Token::SOCKET, Interest::Readable)?;
        }
        if let Some(watch) = &mut self.watch
            && watch.due <= now
        {
            watch.begin_comparison(&self.host.policy_directories(), now);
            if !self.host.are_policies_current() {
                self.reload(ReloadCause::Files);
            }
        }
        self.start_due(now);
        self.close_late(now);
        if let Some(admin) = &mut self.admin {
            admin.store(now, &self.containers);
        }
        Ok(())
    }

    /// How long the event loop may wait for events. At `repeat_at` the notes for the service manager are repeated.
    fn wait_limit(&self, repeat_at: Option<Instant>) -> Option<Duration> {
        let restarts = self
            .containers
            .values()
            .map(|container| container.restart_at);
        let registrations = self.registrations.values();
        let deadlines = registrations.map(|registration| Some(registration.deadline));
        let others = [
            self.reopen_at,
            self.accept_at,
            repeat_at,
            self.admin.as_ref().map(|admin| admin.due),
            self.watch.as_ref().map(|watch| watch.due),
        ];
        let due = restarts.chain(deadlines).chain(others).flatten().min()?;
        // Rounded up, or the loop would wake before the deadline.
        Some(due.saturating_duration_since(Instant::now()) + TIMER_SLACK)
    }

    /// Ends the supervisors, and then the connection to the store. The next agent waits for that before it starts its
    /// supervisors. Returns the number of containers.
    fn stop(mut self) -> usize {
        self.stop_all();
        self.containers.len()
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

fn watch_policies(host: &dyn AgentHost, epoll: &Epoll) -> Result<PolicyWatch, SyscallError> {
    let mut watch = PolicyWatch::new()?;
    epoll.add(&watch, Token::POLICIES, Interest::Readable)?;
    watch.add_directories(&host.policy_directories());
    Ok(watch)
}

fn is_due(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| at <= now)
}

/// The tokens of epoll. Others are numbers of containers and connections.
struct Token;

impl Token {
    const SIGNALS: u64 = u64::MAX;
    const SOCKET: u64 = u64::MAX - 1;
    const STORE: u64 = u64::MAX - 2;
    const ADMIN: u64 = u64::MAX - 3;
    const POLICIES: u64 = u64::MAX - 4;
}

/// The delay before something that failed is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const TIMER_SLACK: Duration = Duration::from_millis(1);

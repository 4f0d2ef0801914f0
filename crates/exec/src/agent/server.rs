//! The agent's event loop: one thread, which starts and watches the supervisors, and answers no call itself.

use std::collections::HashMap;
use std::fmt::Debug;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use peername_identity::Table;
use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::event::signals::SignalFd;
use peername_sys::ipc::seqpacket::peer_user;
use peername_sys::process::limits;
use peername_sys::process::pidfd::Signal;
use peername_sys::process::stderr::try_write_line;
use peername_sys::{NameCall, SyscallError};

use super::admin::AgentAdmin;
use super::container::{Container, StoredContainer};
use super::descriptor_store::{DescriptorStore, Part, StoreEvent, StoredDescriptor, StoredName};
use super::policy::AgentPolicy;
use super::registration::{Announced, Progress, Registration, RegistrationError};

/// What the agent asks the process that it is part of.
pub trait AgentHost: Debug {
    /// Reads the policies.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    fn load_policies(&self) -> Result<Vec<AgentPolicy>, String>;

    /// Opens the store again, after it has ended: an empty one. `None` if there is none so far.
    ///
    /// # Errors
    ///
    /// Why it can't be opened.
    fn reopen_store(&self) -> Result<Option<Box<dyn DescriptorStore>>, String>;

    /// The agent serves, from the start or a reload on; `status` is for people.
    fn ready(&self, status: &str);

    /// A reload has begun.
    fn reloading(&self);
}

/// Why the agent has not started, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The policies can't be read.
    #[error("{0}")]
    Policies(String),
    /// A system call failed.
    #[error("the agent: {0}")]
    Call(#[from] SyscallError),
}

/// How the agent has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By SIGTERM or SIGINT, with so many containers, whose calls wait for the next agent.
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
    users: Vec<u32>,
    socket: UnixListener,
    signals: SignalFd,
    /// `None` while there is none.
    store: Option<Box<dyn DescriptorStore>>,
    /// When a store that has ended is opened again.
    reopen_at: Option<Instant>,
    epoll: Epoll,
    registrations: HashMap<u64, Registration>,
    containers: HashMap<u64, Container>,
    /// The number of the last container or connection.
    last: u64,
    stranger_logged: Option<Instant>,
    admin: Option<AgentAdmin>,
}

impl Agent {
    /// Creates the agent with its listening socket, which is non-blocking, and with the descriptors of an earlier agent. Processes of
    /// these users may announce containers. This process must have one thread only.
    ///
    /// # Errors
    ///
    /// [`AgentError`].
    pub fn new(
        host: Box<dyn AgentHost>,
        users: Vec<u32>,
        socket: OwnedFd,
        store: Box<dyn DescriptorStore>,
        stored: Vec<StoredDescriptor>,
    ) -> Result<Self, AgentError> {
        let policies = host.load_policies().map_err(AgentError::Policies)?;
        limits::raise_open_files()?;
        let epoll = Epoll::new()?;
        let signals = SignalFd::open(&[Signal::TERM, Signal::INT, Signal::HUP])?;
        epoll.add(&signals, Token::SIGNALS, Interest::Readable)?;
        epoll.add(&socket, Token::SOCKET, Interest::Readable)?;
        let containers = containers_of(stored);
        let mut agent = Self {
            host,
            policies,
            users,
            socket: socket.into(),
            signals,
            store: Some(store),
            reopen_at: None,
            epoll,
            registrations: HashMap::new(),
            last: containers.keys().copied().max().unwrap_or_default(),
            containers,
            stranger_logged: None,
            admin: None,
        };
        agent.watch_store()?;
        agent.keep_socket();
        Ok(agent)
    }

    /// Answers the process of the admin endpoint from now on, and stores the sum of all counters in `totals`
    /// ([`create_totals`](super::admin::create_totals)).
    ///
    /// # Errors
    ///
    /// Those of epoll_ctl(2).
    pub fn serve_admin(
        &mut self,
        socket: OwnedFd,
        totals: Table<'static>,
    ) -> Result<(), AgentError> {
        let admin = self.admin.insert(AgentAdmin::new(socket, totals)?);
        Ok(self.epoll.add(&*admin, Token::ADMIN, Interest::Readable)?)
    }

    /// Serves until a signal ends it, or another agent takes over. The supervisors have ended then.
    ///
    /// # Errors
    ///
    /// That of epoll_wait(2).
    pub fn run(mut self) -> Result<Ended, AgentError> {
        let numbers: Vec<u64> = self.containers.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.start(number));
        self.host.ready(&self.status());
        let mut found = Vec::new();
        loop {
            self.epoll.wait(self.wait_limit(), &mut found)?;
            for event in found.drain(..) {
                match event.token {
                    Token::SIGNALS => {
                        if self.obey_signal() {
                            return Ok(Ended::Stopped(self.end()));
                        }
                    }
                    Token::SOCKET => self.accept(),
                    Token::STORE => {
                        if self.is_taken_over() {
                            self.end();
                            return Ok(Ended::TakenOver);
                        }
                    }
                    Token::ADMIN => {
                        let admin = self.admin.take();
                        self.admin = admin.and_then(AgentAdmin::answered);
                    }
                    number if self.registrations.contains_key(&number) => {
                        self.receive(number);
                    }
                    number => self.note_exit(number),
                }
            }
            self.run_due()?;
        }
    }

    /// Reloads at SIGHUP. Returns whether the agent has to end.
    fn obey_signal(&mut self) -> bool {
        match self.signals.next() {
            Some(Signal::HUP) => self.reload(),
            Some(_) => return true,
            None => {}
        }
        false
    }

    /// Replaces the policies, and starts each supervisor again: connections whose header is not complete are closed.
    fn reload(&mut self) {
        self.host.reloading();
        match self.host.load_policies() {
            Ok(policies) => {
                self.policies = policies;
                let numbers: Vec<u64> = self.containers.keys().copied().collect();
                for number in numbers {
                    if let Some(container) = self.containers.get_mut(&number) {
                        container.stop_supervisor();
                    }
                    self.start(number);
                }
                try_write_line("peername: the policies were reloaded");
            }
            Err(error) => try_write_line(&format!(
                "peername: {error}; the policies of before stay in force"
            )),
        }
        self.host.ready(&self.status());
    }

    fn status(&self) -> String {
        let names: Vec<_> = self.policies.iter().map(|one| one.name.as_str()).collect();
        let containers = self.containers.len();
        format!("policies: {}; containers: {containers}", names.join(", "))
    }

    /// Accepts a runtime's connection.
    fn accept(&mut self) {
        let Ok((socket, _)) = self.socket.accept() else {
            return;
        };
        let user = peer_user(&socket).ok();
        if !user.is_some_and(|user| self.users.contains(&user)) {
            return self.log_stranger(user);
        }
        let number = self.next_number();
        let registered = socket
            .set_nonblocking(true)
            .call("ioctl(FIONBIO)")
            .and_then(|()| self.epoll.add(&socket, number, Interest::Readable));
        match registered {
            Ok(()) if self.registrations.len() < MAX_REGISTRATIONS => {
                self.registrations.insert(number, Registration::new(socket));
            }
            Ok(()) => try_write_line(
                "peername: too many runtimes announce containers at once: one was refused",
            ),
            Err(error) => try_write_line(&format!("peername: a runtime's connection: {error}")),
        }
    }

    fn log_stranger(&mut self, user: Option<u32>) {
        let now = Instant::now();
        if self
            .stranger_logged
            .is_some_and(|at| now < at + LOG_INTERVAL)
        {
            return;
        }
        self.stranger_logged = Some(now);
        let user = user.map_or_else(|| "?".to_owned(), |user| user.to_string());
        try_write_line(&format!(
            "peername: refused a connection to the agent's socket by user {user}, who may not announce containers (--runtime-uid)"
        ));
    }

    /// Receives what a runtime has sent.
    fn receive(&mut self, number: u64) {
        let Some(registration) = self.registrations.get_mut(&number) else {
            return;
        };
        match registration.receive() {
            Progress::Incomplete => return,
            Progress::Complete(announced) => self.add(announced),
            Progress::Empty => {}
            Progress::Refused(error) => refused(&error),
        }
        self.registrations.remove(&number);
    }

    /// Adds a container.
    fn add(&mut self, announced: Announced) {
        let Announced { state, calls } = announced;
        let (id, name) = (state.id.clone(), state.policy.clone());
        let policy = self.policy(&name);
        let Some((slots, verbose)) = policy.map(|policy| (policy.slots, policy.verbose)) else {
            return try_write_line(&format!(
                "peername: container {id}: no policy has the name {name:?} (listenerMetadata of its seccomp profile), so its accept(2) \
                 fails"
            ));
        };
        let number = self.next_number();
        match Container::new(state, calls, slots) {
            Ok(container) => {
                if verbose {
                    try_write_line(&format!("peername: container {id}: policy {name}"));
                }
                self.keep(number, &container);
                self.containers.insert(number, container);
                self.start(number);
            }
            Err(error) => try_write_line(&format!(
                "peername: container {id}: {error}; its accept(2) fails"
            )),
        }
    }

    /// Starts a container's supervisor.
    fn start(&mut self, number: u64) {
        let Some(container) = self.containers.get_mut(&number) else {
            return;
        };
        let name = &container.policy;
        let policy = self.policies.iter().find(|policy| policy.name == *name);
        let Some(policy) = policy else {
            try_write_line(&format!(
                "peername: container {}: no policy has the name {name:?} any more, so its accept(2) waits",
                container.id
            ));
            return;
        };
        let id = container.id.clone();
        let started = container
            .start_supervisor(policy)
            .and_then(|process| self.epoll.add(process, number, Interest::Readable));
        if let Err(error) = started {
            container.restart_at = Some(Instant::now() + RETRY_INTERVAL);
            try_write_line(&format!(
                "peername: container {id}: starting its supervisor: {error}"
            ));
        }
    }

    /// Notes that a supervisor has exited: its container has ended, or another one is started.
    fn note_exit(&mut self, number: u64) {
        let Some(container) = self.containers.get_mut(&number) else {
            return;
        };
        container.note_exit();
        if container.is_over() {
            self.remove(number);
        } else {
            try_write_line(&format!(
                "peername: container {}: its supervisor was killed; starting another",
                container.id
            ));
        }
    }

    fn remove(&mut self, number: u64) {
        let container = self.containers.remove(&number);
        if let (Some(admin), Some(container)) = (&mut self.admin, container) {
            admin.note_end(&container);
        }
        if let Some(store) = &mut self.store {
            for part in Part::ALL {
                store.remove(StoredName::Container { number, part });
            }
        }
    }

    /// Starts supervisors that are due, and closes connections that are late.
    fn run_due(&mut self) -> Result<(), AgentError> {
        let now = Instant::now();
        if self.reopen_at.is_some_and(|at| at <= now) {
            self.reopen_store()?;
        }
        let due = self.containers.iter().filter_map(|(&number, container)| {
            container
                .restart_at
                .is_some_and(|at| at <= now)
                .then_some(number)
        });
        let due: Vec<u64> = due.collect();
        due.into_iter().for_each(|number| self.start(number));
        self.registrations.retain(|_, registration| {
            let is_late = registration.deadline <= now;
            if is_late {
                refused(&RegistrationError::Late);
            }
            !is_late
        });
        if let Some(admin) = &mut self.admin {
            admin.store(now, &self.containers);
        }
        Ok(())
    }

    fn wait_limit(&self) -> Option<Duration> {
        let restarts = self.containers.values().filter_map(|one| one.restart_at);
        let deadlines = self.registrations.values().map(|one| one.deadline);
        let due = restarts.chain(deadlines).chain(self.reopen_at);
        let due = due
            .chain(self.admin.as_ref().map(|admin| admin.due))
            .min()?;
        Some(due.saturating_duration_since(Instant::now()) + TIMER_SLACK)
    }

    /// Ends the supervisors. Returns how many containers there are.
    fn end(mut self) -> usize {
        self.containers
            .values_mut()
            .for_each(Container::stop_supervisor);
        self.containers.len()
    }

    /// Whether another agent takes over. Otherwise the store has ended.
    fn is_taken_over(&mut self) -> bool {
        let Some(mut store) = self.store.take() else {
            return false;
        };
        if store.next_event() == StoreEvent::TakenOver {
            return true;
        }
        self.reopen_at = Some(Instant::now());
        false
    }

    /// Opens the store again, and stores everything.
    fn reopen_store(&mut self) -> Result<(), AgentError> {
        self.reopen_at = None;
        match self.host.reopen_store() {
            Ok(Some(store)) => {
                self.store = Some(store);
                self.watch_store()?;
                self.keep_socket();
                if let Some(store) = &mut self.store {
                    for (&number, container) in &self.containers {
                        keep_in(&mut **store, number, container);
                    }
                }
                try_write_line(
                    "peername: the holder of descriptors was killed; another one has them now",
                );
            }
            Ok(None) => self.reopen_at = Some(Instant::now() + RETRY_INTERVAL),
            Err(error) => {
                self.reopen_at = Some(Instant::now() + RETRY_INTERVAL);
                try_write_line(&format!(
                    "peername: the holder of descriptors was killed: {error}; containers fail if the agent dies"
                ));
            }
        }
        Ok(())
    }

    fn watch_store(&mut self) -> Result<(), AgentError> {
        let store = self.store.as_ref();
        match store.and_then(|store| store.events()) {
            Some(events) => Ok(self.epoll.add(events, Token::STORE, Interest::Readable)?),
            None => Ok(()),
        }
    }

    fn keep_socket(&mut self) {
        if let Some(store) = &mut self.store {
            // Without it containers that are started between two agents fail to start, and say so.
            let _ = store.put(StoredName::Socket, self.socket.as_fd());
        }
    }

    fn keep(&mut self, number: u64, container: &Container) {
        if let Some(store) = &mut self.store {
            keep_in(&mut **store, number, container);
        }
    }

    fn policy(&self, name: &str) -> Option<&AgentPolicy> {
        self.policies.iter().find(|policy| policy.name == name)
    }

    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// The containers of an earlier agent, by their numbers.
fn containers_of(stored: Vec<StoredDescriptor>) -> HashMap<u64, Container> {
    let mut found: HashMap<u64, StoredContainer> = HashMap::new();
    for StoredDescriptor { name, fd } in stored {
        if let StoredName::Container { number, part } = name {
            let container = found.entry(number).or_default();
            let place = match part {
                Part::State => &mut container.state,
                Part::Table => &mut container.table,
                Part::Inflight => &mut container.inflight,
                Part::Calls => &mut container.calls,
            };
            *place = Some(fd);
        }
    }
    let complete = |(number, stored)| Some((number, Container::from_stored(stored)?));
    found.into_iter().filter_map(complete).collect()
}

fn keep_in(store: &mut dyn DescriptorStore, number: u64, container: &Container) {
    for part in Part::ALL {
        let name = StoredName::Container { number, part };
        if let Err(error) = store.put(name, container.part(part)) {
            return try_write_line(&format!(
                "peername: container {}: its descriptors can't be kept ({error}), so it fails if the agent dies",
                container.id
            ));
        }
    }
}

fn refused(error: &RegistrationError) {
    try_write_line(&format!(
        "peername: a runtime announced a container, but {error}; its accept(2) fails"
    ));
}

/// What epoll reports; the others are numbers of containers and connections.
struct Token;

impl Token {
    const SIGNALS: u64 = u64::MAX;
    const SOCKET: u64 = u64::MAX - 1;
    const STORE: u64 = u64::MAX - 2;
    const ADMIN: u64 = u64::MAX - 3;
}

/// Each is a container that starts at this moment.
const MAX_REGISTRATIONS: usize = 256;
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Until a supervisor that could not be started is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const TIMER_SLACK: Duration = Duration::from_millis(1);

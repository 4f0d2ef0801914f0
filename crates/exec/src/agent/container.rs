//! A container under supervision: its descriptors, and the process that supervises it.

use std::fs::{self, File};
use std::io::{self, PipeWriter, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use peername_identity::{Counts, Table};
use peername_sys::event::wait_readable;
use peername_sys::ipc::shared_memory::create_anonymous;
use peername_sys::process::fork::ChildProcess;
use peername_sys::process::pidfd::Signal;
use peername_sys::seccomp;
use peername_sys::throttle::RepeatThrottle;
use peername_sys::{NameCall, Result};

use super::container_state::ContainerState;
use super::container_supervisor::{self, AgentPolicy};
use super::descriptor_store::ContainerPart;
use crate::notify::InflightCalls;

/// A container.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) id: String,
    /// The user of the runtime that has announced it.
    pub(super) user: u32,
    pub(super) policy: String,
    /// A [`StateRecord`] for the next agent.
    state: OwnedFd,
    memory: ContainerMemory,
    /// The seccomp listener.
    listener: OwnedFd,
    supervisor: Option<SupervisorProcess>,
    /// When the supervisor is started again.
    pub(super) restart_at: Option<Instant>,
    /// How often in succession the supervisor has ended soon after its start.
    failures: u32,
    /// Whether it was logged that the container's policy is missing.
    pub(super) missing_policy_logged: bool,
    /// Throttles the line of a supervisor that can't be started, which is tried again each second.
    pub(super) start_failures: RepeatThrottle,
}

/// The state of a container's supervisor, in memory that outlives it: the table of clients, and the record of in-flight calls.
#[derive(Debug)]
struct ContainerMemory {
    table: OwnedFd,
    inflight: OwnedFd,
}

impl ContainerMemory {
    /// Creates empty memory for `slots` connections: a power of two, and at least 64.
    fn new(slots: usize) -> Result<Self> {
        Ok(Self {
            table: create_anonymous("peername-table", Table::size(slots))?,
            inflight: InflightCalls::create_memory()?,
        })
    }
}

/// The process of a supervisor.
#[derive(Debug)]
struct SupervisorProcess {
    child: ChildProcess,
    started: Instant,
    /// The pipe whose end stops the supervisor; `None` once it is closed.
    stop: Option<PipeWriter>,
}

/// The descriptors of a container that another agent has stored.
#[derive(Debug, Default)]
pub(super) struct StoredContainer {
    state: Option<OwnedFd>,
    table: Option<OwnedFd>,
    inflight: Option<OwnedFd>,
    listener: Option<OwnedFd>,
}

impl StoredContainer {
    pub(super) fn put(&mut self, part: ContainerPart, fd: OwnedFd) {
        let slot = match part {
            ContainerPart::State => &mut self.state,
            ContainerPart::Table => &mut self.table,
            ContainerPart::Inflight => &mut self.inflight,
            ContainerPart::Calls => &mut self.listener,
        };
        *slot = Some(fd);
    }
}

impl Container {
    /// Creates a container that a runtime of this user has announced, with its seccomp listener, and memory for `slots`
    /// connections.
    pub(super) fn new(
        user: u32,
        state: ContainerState,
        listener: OwnedFd,
        slots: usize,
    ) -> Result<Self> {
        let record = StateRecord {
            id: state.id,
            policy: state.policy,
            pid_namespace: pid_namespace(),
            user,
        };
        let (state, memory) = (record.write()?, ContainerMemory::new(slots)?);
        Ok(Self::without_supervisor(record, state, memory, listener))
    }

    /// Restores a container of an earlier agent.
    ///
    /// # Errors
    ///
    /// The reason why the container can't be supervised; `None` if a part is missing, such as the listener of a container that
    /// has ended.
    pub(super) fn from_stored(stored: StoredContainer) -> Result<Self, Option<&'static str>> {
        let (Some(state), Some(table), Some(inflight), Some(listener)) =
            (stored.state, stored.table, stored.inflight, stored.listener)
        else {
            return Err(None);
        };
        let record = StateRecord::read(&state).ok_or("its state can't be read")?;
        // The recorded calls have thread ids of that namespace.
        if record.pid_namespace != pid_namespace() {
            return Err(Some(
                "its calls are recorded in another PID namespace than this agent's, so its accept(2) fails",
            ));
        }
        let memory = ContainerMemory { table, inflight };
        Ok(Self::without_supervisor(record, state, memory, listener))
    }

    fn without_supervisor(
        record: StateRecord,
        state: OwnedFd,
        memory: ContainerMemory,
        listener: OwnedFd,
    ) -> Self {
        Self {
            id: record.id,
            user: record.user,
            policy: record.policy,
            state,
            memory,
            listener,
            supervisor: None,
            restart_at: None,
            failures: 0,
            missing_policy_logged: false,
            start_failures: RepeatThrottle::default(),
        }
    }

    /// The descriptor to store for the next agent.
    pub(super) fn part(&self, part: ContainerPart) -> BorrowedFd<'_> {
        match part {
            ContainerPart::State => self.state.as_fd(),
            ContainerPart::Table => self.memory.table.as_fd(),
            ContainerPart::Inflight => self.memory.inflight.as_fd(),
            ContainerPart::Calls => self.listener.as_fd(),
        }
    }

    /// The counters and gauges of its table.
    pub(super) fn counts(&self) -> io::Result<Counts> {
        let mut bytes = [0; Counts::SIZE];
        let table = File::from(self.memory.table.try_clone()?);
        table.read_exact_at(&mut bytes, 0)?;
        Ok(Counts::from_bytes(&bytes))
    }

    /// Whether no process of the container is left.
    pub(super) fn has_ended(&self) -> bool {
        seccomp::has_no_process(&self.listener)
    }

    /// Starts a supervisor. None may be running. Returns the descriptor of its process, to watch.
    pub(super) fn start_supervisor(&mut self, policy: &AgentPolicy) -> Result<BorrowedFd<'_>> {
        self.restart_at = None;
        self.missing_policy_logged = false;
        let clone = |part| {
            self.part(part)
                .try_clone_to_owned()
                .call("fcntl(F_DUPFD_CLOEXEC)")
        };
        let (stop_reader, stop_writer) = io::pipe().call("pipe2(2)")?;
        let inherited = [
            clone(ContainerPart::Calls)?,
            clone(ContainerPart::Table)?,
            clone(ContainerPart::Inflight)?,
            stop_reader.into(),
        ];
        let child = ChildProcess::fork(inherited, |descriptors| {
            container_supervisor::run(&self.id, descriptors, policy)
        })?;
        let supervisor = SupervisorProcess {
            child,
            started: Instant::now(),
            stop: Some(stop_writer),
        };
        Ok(self.supervisor.insert(supervisor).child.pidfd().as_fd())
    }

    /// Reaps the supervisor if it has exited, and schedules another: at once, but with increasing delays if supervisors end
    /// soon after their start. Returns the exit status; `None` while it runs.
    pub(super) fn reap_supervisor(&mut self) -> Option<Result<ExitStatus>> {
        let supervisor = self
            .supervisor
            .take_if(|supervisor| supervisor.child.pidfd().has_exited())?;
        let status = supervisor.child.wait();
        let now = Instant::now();
        self.failures = if now < supervisor.started + MIN_UPTIME {
            (self.failures + 1).min(MAX_FAILURES)
        } else {
            0
        };
        let delay = match self.failures {
            0 => Duration::ZERO,
            failures => RESTART_DELAY * (1 << (failures - 1)),
        };
        self.restart_at = Some(now + delay);
        Some(status)
    }

    /// Asks the supervisor to end between two calls.
    pub(super) fn request_stop(&mut self) {
        if let Some(supervisor) = &mut self.supervisor {
            supervisor.stop = None;
        }
    }

    /// Stops the supervisor, and waits until it has exited. It is killed after [`STOP_TIMEOUT`].
    pub(super) fn stop_supervisor(&mut self) {
        self.stop_supervisor_by(Instant::now() + STOP_TIMEOUT);
    }

    /// Like [`Container::stop_supervisor`], with the time at which the supervisor is killed.
    pub(super) fn stop_supervisor_by(&mut self, deadline: Instant) {
        self.request_stop();
        if let Some(supervisor) = self.supervisor.take() {
            let pidfd = supervisor.child.pidfd();
            let left = deadline.saturating_duration_since(Instant::now());
            let has_exited = wait_readable([pidfd.as_fd()], Some(left)).unwrap_or(false);
            if !has_exited {
                let _ = pidfd.signal(Signal::KILL);
            }
            let _ = supervisor.child.wait();
        }
    }
}

/// The properties of a container that the next agent needs, as text in memory.
struct StateRecord {
    id: String,
    policy: String,
    pid_namespace: String,
    user: u32,
}

impl StateRecord {
    /// Writes the record to memory. Spaces separate the names, which contain no spaces.
    fn write(&self) -> Result<OwnedFd> {
        let mut file = File::from(create_anonymous("peername-state", 0)?);
        let Self {
            id,
            policy,
            pid_namespace,
            user,
        } = self;
        let text = format!("{id} {policy} {pid_namespace} {user}");
        file.write_all(text.as_bytes())
            .call("write(2), to memory")?;
        Ok(file.into())
    }

    fn read(state: &OwnedFd) -> Option<Self> {
        let mut file = File::from(state.try_clone().ok()?);
        file.rewind().ok()?;
        let text = io::read_to_string(file.take(MAX_STATE)).ok()?;
        let mut words = text.split(' ').map(str::to_owned);
        Some(Self {
            id: words.next()?,
            policy: words.next()?,
            pid_namespace: words.next()?,
            // Missing in records of older agents.
            user: words.next().map_or(Some(0), |user| user.parse().ok())?,
        })
    }
}

/// The PID namespace of this process, as /proc names it.
fn pid_namespace() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.to_string_lossy().into_owned()
}

/// A supervisor that ends earlier than this after its start counts as a failure.
const MIN_UPTIME: Duration = Duration::from_secs(1);
/// The delay after the first failure. It doubles with each further failure, up to about a minute ([`MAX_FAILURES`]).
const RESTART_DELAY: Duration = Duration::from_millis(100);
const MAX_FAILURES: u32 = 10;
/// The time in which a supervisor must stop. A supervisor that was asked to stop waits for nothing but, perhaps, the close of a
/// descriptor.
pub(super) const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum size of a [`StateRecord`]: an id of 1024 bytes, and two short names.
const MAX_STATE: u64 = 4096;

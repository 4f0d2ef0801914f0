//! A container under supervision: its descriptors, and the process that supervises it.

use std::fs::{self, File};
use std::io::{self, PipeWriter, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use peername_identity::Counts;
use peername_sys::event::wait_readable;
use peername_sys::ipc::shared_memory::create_anonymous;
use peername_sys::process::daemonize::ChildProcess;
use peername_sys::process::pidfd::Signal;
use peername_sys::seccomp;
use peername_sys::{NameCall, SyscallError};

use super::container_memory::ContainerMemory;
use super::container_state::ContainerState;
use super::container_supervisor::{self, SupervisedContainer};
use super::descriptor_store::Part;
use super::policy::AgentPolicy;

type Result<T, E = SyscallError> = std::result::Result<T, E>;

/// A container.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) id: String,
    pub(super) policy: String,
    /// Id and policy, for the next agent.
    state: OwnedFd,
    memory: ContainerMemory,
    calls: OwnedFd,
    supervisor: Option<SupervisorProcess>,
    /// When the supervisor is started again.
    pub(super) restart_at: Option<Instant>,
    /// How often it has ended soon after its start.
    failures: u32,
    has_noted_policy: bool,
}

/// The process of a supervisor.
#[derive(Debug)]
struct SupervisorProcess {
    child: ChildProcess,
    started: Instant,
    /// Closed to stop it.
    stop: Option<PipeWriter>,
}

/// The descriptors of a container that another agent has stored.
#[derive(Debug, Default)]
pub(super) struct StoredContainer {
    state: Option<OwnedFd>,
    table: Option<OwnedFd>,
    inflight: Option<OwnedFd>,
    calls: Option<OwnedFd>,
}

impl StoredContainer {
    pub(super) fn put(&mut self, part: Part, fd: OwnedFd) {
        let slot = match part {
            Part::State => &mut self.state,
            Part::Table => &mut self.table,
            Part::Inflight => &mut self.inflight,
            Part::Calls => &mut self.calls,
        };
        *slot = Some(fd);
    }
}

impl Container {
    /// A container that a runtime has announced, with its seccomp listener, and memory for so many connections.
    pub(super) fn new(state: ContainerState, calls: OwnedFd, slots: usize) -> Result<Self> {
        let record = StateRecord {
            id: state.id,
            policy: state.policy,
            pid_namespace: pid_namespace(),
        };
        let (state, memory) = (record.write()?, ContainerMemory::new(slots)?);
        Ok(Self::without_supervisor(record, state, memory, calls))
    }

    /// A container of an earlier agent.
    ///
    /// # Errors
    ///
    /// A part of it is missing, as its listener after its end: `None`, or why it can't be supervised.
    pub(super) fn from_stored(stored: StoredContainer) -> Result<Self, Option<&'static str>> {
        let (Some(state), Some(table), Some(inflight), Some(calls)) =
            (stored.state, stored.table, stored.inflight, stored.calls)
        else {
            return Err(None);
        };
        let known = StateRecord::read(&state).ok_or("its state can't be read")?;
        // The recorded calls have the numbers of threads there.
        if known.pid_namespace != pid_namespace() {
            return Err(Some(
                "its calls are recorded in another PID namespace than this agent's, so its accept(2) fails",
            ));
        }
        let memory = ContainerMemory { table, inflight };
        Ok(Self::without_supervisor(known, state, memory, calls))
    }

    fn without_supervisor(
        record: StateRecord,
        state: OwnedFd,
        memory: ContainerMemory,
        calls: OwnedFd,
    ) -> Self {
        Self {
            id: record.id,
            policy: record.policy,
            state,
            memory,
            calls,
            supervisor: None,
            restart_at: None,
            failures: 0,
            has_noted_policy: false,
        }
    }

    /// Whether it is to be logged that its policy is missing: once.
    pub(super) fn notes_missing_policy(&mut self) -> bool {
        !std::mem::replace(&mut self.has_noted_policy, true)
    }

    /// What the next agent needs.
    pub(super) fn part(&self, part: Part) -> BorrowedFd<'_> {
        match part {
            Part::State => self.state.as_fd(),
            Part::Table => self.memory.table.as_fd(),
            Part::Inflight => self.memory.inflight.as_fd(),
            Part::Calls => self.calls.as_fd(),
        }
    }

    /// The counters and gauges of its table.
    pub(super) fn counts(&self) -> io::Result<Counts> {
        let mut bytes = [0; Counts::SIZE];
        let table = File::from(self.memory.table.try_clone()?);
        table.read_exact_at(&mut bytes, 0)?;
        Ok(Counts::from_bytes(&bytes))
    }

    /// Whether none of its processes is left.
    pub(super) fn is_over(&self) -> bool {
        seccomp::is_over(&self.calls)
    }

    /// Starts its supervisor, after one that has ended. Returns the process's descriptor, to watch.
    pub(super) fn start_supervisor(&mut self, policy: &AgentPolicy) -> Result<BorrowedFd<'_>> {
        self.restart_at = None;
        self.has_noted_policy = false;
        let clone = |part| {
            let fd: BorrowedFd<'_> = self.part(part);
            fd.try_clone_to_owned().call("fcntl(F_DUPFD_CLOEXEC)")
        };
        let (stopped, stop) = io::pipe().call("pipe2(2)")?;
        let inherited = [
            clone(Part::Calls)?,
            clone(Part::Table)?,
            clone(Part::Inflight)?,
            stopped.into(),
        ];
        let id = self.id.clone();
        let child = ChildProcess::fork(inherited, |[calls, table, inflight, stop]| {
            let container = SupervisedContainer {
                id,
                calls,
                table,
                inflight,
                stop,
            };
            container_supervisor::run(container, policy)
        })?;
        let started = SupervisorProcess {
            child,
            started: Instant::now(),
            stop: Some(stop),
        };
        Ok(self.supervisor.insert(started).child.pidfd().as_fd())
    }

    /// If the supervisor has exited, returns how, and notes when another may be started: at once, but later and later if it ends soon
    /// after its start.
    pub(super) fn note_exit(&mut self) -> Option<ExitStatus> {
        let supervisor = self
            .supervisor
            .take_if(|one| one.child.pidfd().has_exited())?;
        let status = supervisor.child.wait().ok()?;
        let now = Instant::now();
        self.failures = match now < supervisor.started + SOON {
            true => (self.failures + 1).min(MAX_FAILURES),
            false => 0,
        };
        let delay = match self.failures {
            0 => Duration::ZERO,
            failures => RESTART_DELAY * (1 << (failures - 1)),
        };
        self.restart_at = Some(now + delay);
        Some(status)
    }

    /// Asks the supervisor to end between two calls.
    pub(super) fn ask_to_stop(&mut self) {
        if let Some(supervisor) = &mut self.supervisor {
            supervisor.stop = None;
        }
    }

    /// Stops the supervisor, and waits until it has exited.
    pub(super) fn stop_supervisor(&mut self) {
        self.stop_supervisor_by(Instant::now() + STOP_LIMIT);
    }

    /// The same; it is killed at this time.
    pub(super) fn stop_supervisor_by(&mut self, deadline: Instant) {
        self.ask_to_stop();
        if let Some(supervisor) = self.supervisor.take() {
            let left = deadline.saturating_duration_since(Instant::now());
            let exited = wait_readable([supervisor.child.pidfd().as_fd()], Some(left));
            if !exited.unwrap_or(false) {
                let _ = supervisor.child.pidfd().signal(Signal::KILL);
            }
            let _ = supervisor.child.wait();
        }
    }
}

/// What the next agent has to know of a container.
struct StateRecord {
    id: String,
    policy: String,
    pid_namespace: String,
}

impl StateRecord {
    /// Writes it to memory. The names have no spaces.
    fn write(&self) -> Result<OwnedFd> {
        let mut file = File::from(create_anonymous("peername-state", 0)?);
        let text = format!("{} {} {}", self.id, self.policy, self.pid_namespace);
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
        })
    }
}

/// The PID namespace of this process, as /proc names it.
fn pid_namespace() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.to_string_lossy().into_owned()
}

/// A supervisor that ends earlier after its start has failed.
const SOON: Duration = Duration::from_secs(1);
/// Until the second start of one that has failed; then twice as long each time, up to a minute.
const RESTART_DELAY: Duration = Duration::from_millis(100);
const MAX_FAILURES: u32 = 10;
/// A supervisor waits for nothing but a descriptor that it closes.
pub(super) const STOP_LIMIT: Duration = Duration::from_secs(3);
const MAX_STATE: u64 = 4096;

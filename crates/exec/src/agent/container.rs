//! A container under supervision: its descriptors, and the process that supervises it.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use peername_identity::Counts;
use peername_sys::ipc::shared_memory::create_anonymous;
use peername_sys::process::daemonize;
use peername_sys::process::pidfd::{PidFd, Signal};
use peername_sys::seccomp;
use peername_sys::{NameCall, Result};

use super::container_memory::ContainerMemory;
use super::container_state::ContainerState;
use super::container_supervisor::{self, SupervisedContainer};
use super::descriptor_store::Part;
use super::policy::AgentPolicy;

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
}

/// The process of a supervisor.
#[derive(Debug)]
struct SupervisorProcess {
    pid: u32,
    process: PidFd,
    started: Instant,
}

/// The descriptors of a container that another agent has stored.
#[derive(Debug, Default)]
pub(super) struct StoredContainer {
    pub(super) state: Option<OwnedFd>,
    pub(super) table: Option<OwnedFd>,
    pub(super) inflight: Option<OwnedFd>,
    pub(super) calls: Option<OwnedFd>,
}

impl Container {
    /// A container that a runtime has announced, with its seccomp listener, and memory for so many connections.
    ///
    /// # Errors
    ///
    /// Those of memfd_create(2).
    pub(super) fn new(state: ContainerState, calls: OwnedFd, slots: usize) -> Result<Self> {
        Ok(Self {
            state: write_state(&state)?,
            id: state.id,
            policy: state.policy,
            memory: ContainerMemory::new(slots)?,
            calls,
            supervisor: None,
            restart_at: None,
        })
    }

    /// A container of an earlier agent. `None` if that did not store all of it.
    pub(super) fn from_stored(stored: StoredContainer) -> Option<Self> {
        let state = stored.state?;
        let (id, policy) = read_state(&state)?;
        Some(Self {
            id,
            policy,
            state,
            memory: ContainerMemory {
                table: stored.table?,
                inflight: stored.inflight?,
            },
            calls: stored.calls?,
            supervisor: None,
            restart_at: None,
        })
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
    ///
    /// # Errors
    ///
    /// Those of pread(2).
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
    ///
    /// # Errors
    ///
    /// Those of fork(2), EMFILE.
    pub(super) fn start_supervisor(&mut self, policy: &AgentPolicy) -> Result<BorrowedFd<'_>> {
        self.restart_at = None;
        let clone = |part| {
            let fd: BorrowedFd<'_> = self.part(part);
            fd.try_clone_to_owned().call("fcntl(F_DUPFD_CLOEXEC)")
        };
        let inherited = [
            clone(Part::Calls)?,
            clone(Part::Table)?,
            clone(Part::Inflight)?,
        ];
        let (id, agent) = (self.id.clone(), std::process::id());
        let pid = daemonize::fork_child(inherited, |[calls, table, inflight]| {
            let container = SupervisedContainer {
                id,
                calls,
                table,
                inflight,
            };
            container_supervisor::run(container, policy, agent)
        })?;
        let started = SupervisorProcess {
            pid,
            process: PidFd::open(pid)?,
            started: Instant::now(),
        };
        Ok(self.supervisor.insert(started).process.as_fd())
    }

    /// Notes that the supervisor has exited, and when another may be started: at once, unless it has lived for a moment only.
    pub(super) fn note_exit(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            daemonize::reap(supervisor.pid);
            let due = supervisor.started + RESTART_INTERVAL;
            self.restart_at = Some(due.max(Instant::now()));
        }
    }

    /// Kills the supervisor, and waits until it has exited.
    pub(super) fn stop_supervisor(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            let _ = supervisor.process.signal(Signal::KILL);
            let _ = daemonize::wait_exit(supervisor.pid);
        }
    }
}

/// The names have no spaces.
fn write_state(state: &ContainerState) -> Result<OwnedFd> {
    let mut file = File::from(create_anonymous("peername-state", 0)?);
    write!(file, "{} {}", state.id, state.policy).call("write(2), to memory")?;
    Ok(file.into())
}

fn read_state(state: &OwnedFd) -> Option<(String, String)> {
    let mut file = File::from(state.try_clone().ok()?);
    file.rewind().ok()?;
    let text = io::read_to_string(file.take(MAX_STATE)).ok()?;
    let (id, policy) = text.split_once(' ')?;
    Some((id.to_owned(), policy.to_owned()))
}

/// A supervisor that ends at once is not started more often.
const RESTART_INTERVAL: Duration = Duration::from_secs(1);
const MAX_STATE: u64 = 4096;

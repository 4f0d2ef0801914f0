//! The supervisor of one container: a child process of the agent, in the container's network namespace.
//!
//! The runtime names the container's first process by a number, which may be another process's by now. So the namespace is that of
//! the first thread whose call waits here: as long as it does, the thread can't exit.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use peername_sys::SyscallError;
use peername_sys::event::wait_readable;
use peername_sys::process::daemonize;
use peername_sys::process::namespace::{NetworkNamespace, UserNamespace};
use peername_sys::process::secrets;
use peername_sys::process::stderr::{self, try_write_line};
use peername_sys::seccomp::{self, Notification, NotificationListener};

use super::container_memory::map_table;
use super::policy::AgentPolicy;
use crate::notify::{self, InflightCalls, SupervisorConfig};
use crate::sockets::find_listing;
use crate::table::Rules;

/// The descriptors of a container that its supervisor needs.
pub(super) struct SupervisedContainer {
    pub(super) id: String,
    pub(super) calls: OwnedFd,
    pub(super) table: OwnedFd,
    pub(super) inflight: OwnedFd,
    /// Readable once the agent has ended, or asks the supervisor to end.
    pub(super) stop: OwnedFd,
}

/// Why a supervisor ends before its container.
#[derive(Debug, thiserror::Error)]
enum SupervisorError {
    #[error(
        "its processes are in no PID namespace below the agent's: run the agent in the host's (hostPID, --pid=host)"
    )]
    ForeignPids,
    #[error("entering its network: {0}")]
    Network(SyscallError),
    #[error("{0}")]
    Call(#[from] SyscallError),
}

/// Supervises a container until none of its processes is left, or until the agent ends. Returns the exit code.
pub(super) fn run(container: SupervisedContainer, policy: &AgentPolicy) -> u8 {
    daemonize::set_thread_name(c"peername-notify");
    stderr::set_subject(format!("container {}", container.id));
    match supervise(container, policy) {
        Ok(()) => 0,
        Err(error) => {
            try_write_line(&format!("peername: its supervisor has ended: {error}"));
            1
        }
    }
}

fn supervise(container: SupervisedContainer, policy: &AgentPolicy) -> Result<(), SupervisorError> {
    let SupervisedContainer {
        calls,
        table,
        inflight,
        stop,
        ..
    } = container;
    let calls = NotificationListener::from(calls);
    // The supervisor of an agent that was before may be ending.
    let inflight = InflightCalls::lock(inflight)?;
    // It may enter a user namespace in which the container has every capability.
    secrets::disable_core_dumps()?;
    if !enter_network_of_first_caller(&calls, inflight, &stop)? {
        return Ok(());
    }
    let table = map_table(table)?;
    let rules = Rules {
        listing: find_listing()?,
        ..policy.rules.clone()
    };
    rules.write_to(table.settings())?;
    let config = SupervisorConfig {
        table,
        header_timeout: policy.header_timeout,
        library: None,
        clients: policy.clients.clone(),
        verbose: policy.verbose,
        admin: None,
    };
    notify::supervise_filter(&config, calls, inflight, stop)?;
    Ok(())
}

/// Moves this process into the network namespace of the first thread that makes a call. Returns whether there is one.
fn enter_network_of_first_caller(
    calls: &NotificationListener,
    inflight: InflightCalls,
    stop: &OwnedFd,
) -> Result<bool, SupervisorError> {
    while let Some(call) = first_call(calls, inflight, stop)? {
        if call.tid == 0 {
            return Err(SupervisorError::ForeignPids);
        }
        let network = NetworkNamespace::of_thread(call.tid);
        let users = UserNamespace::of_process(call.tid);
        if !calls.is_pending(call.id) {
            continue;
        }
        let entered = network.and_then(|network| enter(&network, users));
        entered.map_err(SupervisorError::Network)?;
        return Ok(true);
    }
    Ok(false)
}

/// Waits for a call, and records it as in flight. `None` if no process is left, or the agent ends.
fn first_call(
    calls: &NotificationListener,
    inflight: InflightCalls,
    stop: &OwnedFd,
) -> Result<Option<Notification>, SyscallError> {
    loop {
        let recorded = inflight.iter().map(|recorded| recorded.call);
        if let Some(call) = recorded.into_iter().find(|call| calls.is_pending(call.id)) {
            return Ok(Some(call));
        }
        wait_readable([calls.as_fd(), stop.as_fd()], None)?;
        let is_stopped = wait_readable([stop.as_fd()], Some(Duration::ZERO))?;
        if is_stopped || seccomp::is_over(calls) {
            return Ok(None);
        }
        inflight.receive(calls);
    }
}

/// The agent of an ordinary user may enter the network of its containers only from the user namespace that the network belongs to.
/// A container that has this host's network has a user namespace of its own nevertheless: the one below the agent's, in which all
/// its processes are within reach, those in namespaces of their own, too.
fn enter(
    network: &NetworkNamespace,
    users: Result<UserNamespace, SyscallError>,
) -> Result<(), SyscallError> {
    match network.enter() {
        Err(error) if error.is_permission() => {
            if network.is_current()? {
                let own = UserNamespace::of_process(std::process::id())?;
                let of_container = users?.child_of(&own);
                return of_container.map_or(Ok(()), |users| users.enter());
            }
            network.owner()?.enter()?;
            network.enter()
        }
        entered => entered,
    }
}

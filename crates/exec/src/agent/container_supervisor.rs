//! The supervisor of one container: a child process of the agent, in the container's network namespace.
//!
//! The runtime's message has the id of the container's first process, which another process may have by now. So the namespace
//! is taken from the first thread whose call waits here: as long as the call waits, the thread can't exit.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use peername_sys::SyscallError;
use peername_sys::event::wait_readable;
use peername_sys::process::fork;
use peername_sys::process::namespace::{NetworkNamespace, UserNamespace};
use peername_sys::process::secrets;
use peername_sys::seccomp::{self, Notification, NotificationListener};

use super::container_memory::map_table;
use super::policy::AgentPolicy;
use crate::notify::{self, InflightCalls, SupervisorConfig};
use crate::sockets::find_listing;
use crate::stderr_line::{set_subject, try_write_line};
use crate::table::TableRules;

/// The descriptors of a container that its supervisor needs.
pub(super) struct SupervisedContainer {
    pub(super) id: String,
    pub(super) listener: OwnedFd,
    pub(super) table: OwnedFd,
    pub(super) inflight: OwnedFd,
    /// Readable once the agent has ended, or asks the supervisor to end.
    pub(super) stop: OwnedFd,
}

/// An error that ends a supervisor before its container.
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
    fork::set_thread_name(c"peername-notify");
    set_subject(format!("container {}", container.id));
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
        listener,
        table,
        inflight,
        stop,
        ..
    } = container;
    let listener = NotificationListener::from(listener);
    // Waits for the supervisor of an earlier agent, which may be about to exit.
    let inflight = InflightCalls::lock(inflight)?;
    // The supervisor may enter a user namespace in which the container has every capability.
    secrets::disable_core_dumps()?;
    if !enter_network_of_first_caller(&listener, inflight, &stop)? {
        return Ok(());
    }
    let table = map_table(table)?;
    let rules = TableRules {
        listing: find_listing()?,
        ..policy.rules.clone()
    };
    rules.write_to(table.settings())?;
    let config = SupervisorConfig {
        table,
        header_timeout: policy.header_timeout,
        table_file: None,
        judge: policy.judge.clone(),
        warns_of_other_ports: false,
        verbose: policy.verbose,
        admin: None,
    };
    notify::supervise_filter(&config, listener, inflight, stop)?;
    Ok(())
}

/// Moves this process into the network namespace of the first thread that makes a call. Returns whether there is such a thread.
fn enter_network_of_first_caller(
    listener: &NotificationListener,
    inflight: InflightCalls,
    stop: &OwnedFd,
) -> Result<bool, SupervisorError> {
    while let Some(call) = first_call(listener, inflight, stop)? {
        if call.tid == 0 {
            return Err(SupervisorError::ForeignPids);
        }
        let network = NetworkNamespace::of_thread(call.tid);
        let users = UserNamespace::of_process(call.tid);
        // If the call is over, the namespaces may be those of another thread.
        if !listener.is_pending(call.id) {
            continue;
        }
        network
            .and_then(|network| enter(&network, users))
            .map_err(SupervisorError::Network)?;
        return Ok(true);
    }
    Ok(false)
}

/// Waits for a call, and records it as in flight. `None` if no process is left, or the supervisor is to stop.
fn first_call(
    listener: &NotificationListener,
    inflight: InflightCalls,
    stop: &OwnedFd,
) -> Result<Option<Notification>, SyscallError> {
    loop {
        let mut recorded = inflight.iter().map(|recorded| recorded.call);
        if let Some(call) = recorded.find(|call| listener.is_pending(call.id)) {
            return Ok(Some(call));
        }
        wait_readable([listener.as_fd(), stop.as_fd()], None)?;
        let is_stopped = wait_readable([stop.as_fd()], Some(Duration::ZERO))?;
        if is_stopped || seccomp::has_no_process(listener) {
            return Ok(None);
        }
        inflight.receive(listener);
    }
}

/// Enters the network namespace of a container, and the user namespace from which its processes are accessible.
///
/// The agent of an ordinary user may enter a network namespace only from the user namespace that owns it. A container that has
/// this host's network may still have a user namespace of its own. Then the supervisor enters the one directly below the
/// agent's: from there all processes of the container are accessible, including those in namespaces further below.
fn enter(
    network: &NetworkNamespace,
    users: Result<UserNamespace, SyscallError>,
) -> Result<(), SyscallError> {
    match network.enter() {
        Err(error) if error.is_permission() => {
            if network.is_current()? {
                let own = UserNamespace::of_process(std::process::id())?;
                return match users?.child_of(&own) {
                    Some(child) => child.enter(),
                    None => Ok(()),
                };
            }
            network.owner()?.enter()?;
            network.enter()
        }
        entered => entered,
    }
}

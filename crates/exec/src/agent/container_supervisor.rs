//! The supervisor of one container: a child process of the agent, in the container's network namespace.
//!
//! The runtime's message has the id of the container's first process, which another process may have by now. So the namespace
//! is taken from the first listener that expects headers and at which a thread accepts: a sandbox within the container may have a
//! network of its own, and from there no listener of the container could be woken, and none of its sockets be found. Where the
//! agent may not ask the listener (without CAP_NET_ADMIN there), the namespace is the thread's: as long as its call waits, the thread
//! can't exit. Other calls are answered outside of the network.

use std::os::fd::OwnedFd;

use peername_sys::SyscallError;
use peername_sys::process::fork;
use peername_sys::process::namespace::{NetworkNamespace, UserNamespace};
use peername_sys::process::secrets;
use peername_sys::seccomp::NotificationListener;

use super::container_memory::map_table;
use super::policy::AgentPolicy;
use crate::notify::{self, DenialLog, HandedBackCall, InflightCalls, SupervisorConfig};
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
    let table = map_table(table)?;
    let config = SupervisorConfig {
        table,
        header_timeout: policy.header_timeout,
        table_file: None,
        judge: policy.judge.clone(),
        warns_of_other_ports: false,
        verbose: policy.verbose,
        admin: None,
    };
    let settings = table.settings();
    let rules = |listing| TableRules {
        listing,
        ..policy.rules.clone()
    };
    // The clients of open connections were stored with this listing by the supervisor before.
    rules(settings.policy().listing).write_to(settings)?;
    if !enter_network_of_first_accept(&config, &listener, inflight, &stop)? {
        return Ok(());
    }
    rules(find_listing()?).write_to(settings)?;
    notify::supervise_filter(&config, listener, inflight, stop)?;
    Ok(())
}

/// Moves this process into the network namespace of the first listener that expects headers and at which a thread accepts. Returns
/// whether there is one.
fn enter_network_of_first_accept(
    config: &SupervisorConfig,
    listener: &NotificationListener,
    inflight: InflightCalls,
    stop: &OwnedFd,
) -> Result<bool, SupervisorError> {
    let (mut has_entered_users, mut denial_log) = (false, DenialLog::default());
    while let Some(HandedBackCall {
        call,
        denial,
        network,
    }) = notify::wait_first_accept(config, listener, inflight, stop)?
    {
        if call.tid == 0 {
            return Err(SupervisorError::ForeignPids);
        }
        let network = network.map_or_else(|| NetworkNamespace::of_thread(call.tid), Ok);
        let users = UserNamespace::of_process(call.tid);
        // If the call is over, the namespaces may be those of another thread.
        if !listener.is_pending(call.id) {
            continue;
        }
        if let Some(denial) = denial {
            // From the user namespace below the agent's, all processes of the container are accessible. A call that is denied there,
            // too, fails: a supervisor that ended would leave it to the next, which would end as well.
            if !has_entered_users && enter_users_below_own(users).unwrap_or(false) {
                has_entered_users = true;
            } else {
                denial_log.write(&denial);
                listener.fail(call.id, &denial.source);
            }
            continue;
        }
        let users = (!has_entered_users).then_some(users);
        network
            .and_then(|network| enter(&network, users))
            .map_err(SupervisorError::Network)?;
        return Ok(true);
    }
    Ok(false)
}

/// Enters the network namespace of a container, and the user namespace from which its processes are accessible.
///
/// The agent of an ordinary user may enter a network namespace only from the user namespace that owns it. A container that has
/// this host's network may still have a user namespace of its own. Then the supervisor enters the one directly below the
/// agent's: from there all processes of the container are accessible, including those in namespaces further below. `users` is
/// `None` if it is there already.
fn enter(
    network: &NetworkNamespace,
    users: Option<Result<UserNamespace, SyscallError>>,
) -> Result<(), SyscallError> {
    match network.enter() {
        Err(error) if error.is_permission() => {
            if network.is_current()? {
                users.map(enter_users_below_own).transpose()?;
                return Ok(());
            }
            network.owner()?.enter()?;
            network.enter()
        }
        entered => entered,
    }
}

/// Enters the user namespace directly below this process's that is `users` or above it. Returns whether there is one.
fn enter_users_below_own(users: Result<UserNamespace, SyscallError>) -> Result<bool, SyscallError> {
    let own = UserNamespace::of_process(std::process::id())?;
    match users?.child_of(&own) {
        Some(child) => child.enter().map(|()| true),
        None => Ok(false),
    }
}

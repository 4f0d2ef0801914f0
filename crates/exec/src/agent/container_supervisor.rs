//! The supervisor of one container: a child process of the agent, in the container's network namespace.
//!
//! The runtime names the container's first process by a number, which may be another process's by now. So the namespace is that of
//! the first thread whose call waits here: as long as it does, the thread can't exit.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::parent_id;
use std::process;

use peername_sys::event::wait_readable;
use peername_sys::process::daemonize;
use peername_sys::process::namespace::{NetworkNamespace, UserNamespace};
use peername_sys::process::pidfd::Signal;
use peername_sys::process::stderr::{self, try_write_line};
use peername_sys::seccomp::{self, Notification, NotificationListener};
use peername_sys::{Errno, SyscallError};

use super::container_memory::map_table;
use super::policy::AgentPolicy;
use crate::notify::{self, InflightCalls, SupervisorConfig};
use crate::open_sockets::find_listing;
use crate::table::Rules;

/// The descriptors of a container that its supervisor needs.
pub(super) struct SupervisedContainer {
    pub(super) id: String,
    pub(super) calls: OwnedFd,
    pub(super) table: OwnedFd,
    pub(super) inflight: OwnedFd,
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

/// Supervises a container until none of its processes is left; ends with the agent, whose process id is `agent`. Returns the exit
/// code: 0 if the container has ended.
pub(super) fn run(container: SupervisedContainer, policy: &AgentPolicy, agent: u32) -> u8 {
    daemonize::set_thread_name(c"peername-notify");
    stderr::set_subject(format!("container {}", container.id));
    match supervise(container, policy, agent) {
        Ok(()) => 0,
        Err(error) => {
            try_write_line(&format!("peername: its supervisor has ended: {error}"));
            1
        }
    }
}

fn supervise(
    container: SupervisedContainer,
    policy: &AgentPolicy,
    agent: u32,
) -> Result<(), SupervisorError> {
    let SupervisedContainer {
        calls,
        table,
        inflight,
        ..
    } = container;
    let calls = NotificationListener::from(calls);
    let inflight = InflightCalls::map(inflight)?;
    end_with(agent)?;
    if !enter_network_of_first_caller(&calls, inflight)? {
        return Ok(());
    }
    // A change of credentials has ended it.
    end_with(agent)?;
    let table = map_table(table)?;
    let rules = Rules {
        listing: find_listing()?,
        ..policy.rules.clone()
    };
    rules.write_to(table.settings());
    let config = SupervisorConfig {
        table,
        header_timeout: policy.header_timeout,
        library: None,
        clients: policy.clients.clone(),
        verbose: policy.verbose,
        admin: None,
    };
    Ok(notify::supervise_filter(&config, calls, inflight)?)
}

/// Makes the kernel kill this process when the agent exits.
fn end_with(agent: u32) -> Result<(), SyscallError> {
    daemonize::set_parent_death_signal(Signal::KILL)?;
    if parent_id() != agent {
        process::exit(1);
    }
    Ok(())
}

/// Moves this process into the network namespace of the first thread that makes a call. Returns whether there is one.
fn enter_network_of_first_caller(
    calls: &NotificationListener,
    inflight: InflightCalls,
) -> Result<bool, SupervisorError> {
    while let Some(call) = first_call(calls, inflight)? {
        if call.tid == 0 {
            return Err(SupervisorError::ForeignPids);
        }
        let found = NetworkNamespace::of_thread(call.tid)
            .and_then(|network| Ok((network, UserNamespace::of_process(call.tid)?)));
        if !calls.is_pending(call.id) {
            continue;
        }
        let (network, user) = found.map_err(SupervisorError::Network)?;
        enter(&network, &user).map_err(SupervisorError::Network)?;
        return Ok(true);
    }
    Ok(false)
}

/// Waits for a call, and records it as in flight. `None` if no process is left.
fn first_call(
    calls: &NotificationListener,
    inflight: InflightCalls,
) -> Result<Option<Notification>, SyscallError> {
    loop {
        let recorded = inflight.iter().map(|recorded| recorded.call);
        if let Some(call) = recorded.into_iter().find(|call| calls.is_pending(call.id)) {
            return Ok(Some(call));
        }
        wait_readable([calls.as_fd()], None)?;
        if seccomp::is_over(calls) {
            return Ok(None);
        }
        if let Ok(call) = calls.receive()
            && inflight.insert(&call).is_none()
        {
            calls.fail(call.id, &Errno::NOMEM.into());
        }
    }
}

/// The agent of an ordinary user may enter the network of its containers from their user namespace only.
fn enter(network: &NetworkNamespace, user: &UserNamespace) -> Result<(), SyscallError> {
    match network.enter() {
        Err(error) if error.is_permission() => {
            user.enter()?;
            network.enter()
        }
        entered => entered,
    }
}

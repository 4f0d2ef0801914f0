//! The supervisor of one container: a child process of the agent, in the container's network namespace.
//!
//! The runtime's message has the id of the container's first process, which another process may have by now. So the namespace
//! is taken from the first listener that expects headers and at which a thread accepts: a sandbox within the container may have a
//! network of its own, and from there no listener of the container could be woken, and none of its sockets be found. Where the
//! agent may not ask the listener (without CAP_NET_ADMIN there), the namespace is the thread's: as long as its call waits, the thread
//! can't exit. Other calls are answered outside of the network.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use peername_identity::Table;
use peername_sys::ipc::shared_memory::map_words;
use peername_sys::process::fork;
use peername_sys::process::namespace::{NetworkNamespace, UserNamespace};
use peername_sys::process::secrets;
use peername_sys::seccomp::NotificationListener;
use peername_sys::{NameCall, SyscallError};

use crate::client_judge::ClientJudge;
use crate::notify::{self, DenialLog, HandedBackCall, InflightCalls, SupervisorConfig};
use crate::sockets::find_listing;
use crate::stderr_line::{set_subject, try_write_line};
use crate::table::TableRules;

/// A policy, which containers name by `listenerMetadata` in their seccomp profile.
#[derive(Clone, Debug)]
pub struct AgentPolicy {
    /// The name.
    pub name: String,
    /// The headers that are expected, and the ports. `listing` is determined for each container.
    pub rules: TableRules,
    /// Connections of a container that may be open at the same time: a power of two, and at least 64.
    pub slots: usize,
    /// The time from accept to the complete header.
    pub header_timeout: Duration,
    /// Decides which clients may connect; `None` where all may.
    pub judge: Option<Rc<dyn ClientJudge>>,
    /// Log each refused connection, not only the first of each reason in an interval.
    pub verbose: bool,
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
/// `descriptors`: the seccomp listener, the table of clients, the record of in-flight calls, and a pipe that is readable once
/// the agent has ended, or asks the supervisor to end.
pub(super) fn run(id: &str, descriptors: [OwnedFd; 4], policy: &AgentPolicy) -> u8 {
    fork::set_thread_name(c"peername-notify");
    set_subject(format!("container {id}"));
    match supervise(descriptors, policy) {
        Ok(()) => 0,
        Err(error) => {
            try_write_line(&format!("peername: its supervisor has ended: {error}"));
            1
        }
    }
}

fn supervise(
    [listener, table, inflight, stop]: [OwnedFd; 4],
    policy: &AgentPolicy,
) -> Result<(), SupervisorError> {
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

/// Maps a table whose settings the caller will write. An error also means that the memory is no table of this version.
fn map_table(memory: OwnedFd) -> Result<Table<'static>, SyscallError> {
    let memory = File::from(memory);
    let size = memory.metadata().call("fstat(2)")?.len();
    let words = map_words(&memory, usize::try_from(size).unwrap_or(usize::MAX))?;
    Table::adopt(words)
        .ok_or_else(|| io::Error::other("it is of another version of peername"))
        .call("opening the table of clients")
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
        let network = network
            .transpose()
            .unwrap_or_else(|| NetworkNamespace::of_thread(call.tid));
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

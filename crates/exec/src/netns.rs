//! `--mode netns`: the program runs in a network namespace of its own, in which every address is local, and `peername
//! proxy` connects to it from the client's address. Nothing of the program is intercepted.
//!
//! ```text
//!   outside                │ private network: `local 0.0.0.0/0 dev lo`, `local ::/0 dev lo`
//!                          │
//!   balancer ───▶ listening socket ──▶ peername proxy ──from the client's address──▶ program
//!                 (opened outside,     (own process)                                 (this process)
//!                  inherited)          │
//! ```
//!
//! Because every address is local there, a connection may come from any address, and replies to it stay inside. On the
//! host nothing is changed and no capability is used: an ordinary user's private network is created in a user namespace.
//! The proxy is that of `peername proxy`, with all its features.
//!
//! The price: the program reaches nothing outside, not even a name server.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{self, Command};
use std::time::Duration;

use peername_sys::SyscallError;
use peername_sys::event::wait_readable;
use peername_sys::ipc::listen_fds;
use peername_sys::netlink::make_every_address_local;
use peername_sys::process::caps::{CapabilitySet, is_effective, raise_ambient};
use peername_sys::process::fork::{self, ChildProcess};
use peername_sys::process::kill_on_close::KillOnClose;
use peername_sys::process::launch::become_program;
use peername_sys::process::namespace::{
    NetworkNamespace, allow_unprivileged_ports, become_capable_in_new_user_namespace,
};
use peername_sys::process::pidfd::{PidFd, Signal};
use peername_sys::process::stderr::write_line;

use crate::stderr_line::try_write_line;

/// An error returned by [`start`].
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// This host does not allow namespaces for this user.
    #[error(
        "{0}: this host does not let ordinary users make namespaces (kernel.unprivileged_userns_clone, \
         kernel.apparmor_restrict_unprivileged_userns); allow it (docs/confinement.md has an AppArmor profile), or run as root"
    )]
    Namespace(SyscallError),
    /// The network can't be configured.
    #[error("the private network: {0}")]
    SetUp(SyscallError),
    /// The proxy can't be started.
    #[error("starting the proxy: {0}")]
    Start(#[from] SyscallError),
}

/// Moves this process into a private network, and starts `peername` with the arguments `proxy` beside it. The proxy
/// inherits `sockets`, which are bound in the network that this process leaves. Execute the program next.
///
/// The proxy ends with this process, and this process with the proxy. This process must have one thread only.
pub fn start(sockets: Vec<OwnedFd>, proxy: Vec<OsString>) -> Result<(), NetnsError> {
    if !is_effective(CapabilitySet::SYS_ADMIN) {
        become_capable_in_new_user_namespace().map_err(NetnsError::Namespace)?;
    }
    NetworkNamespace::unshare().map_err(NetnsError::Namespace)?;
    make_every_address_local(&[]).map_err(NetnsError::SetUp)?;
    allow_unprivileged_ports().map_err(NetnsError::SetUp)?;
    let mut inherited = sockets;
    inherited.push(PidFd::current()?.into());
    let pid = process::id();
    fork::spawn_detached(inherited, |mut sockets| {
        let Some(program) = sockets.pop().map(PidFd::from) else {
            return 1;
        };
        match supervise(pid, &program, sockets, proxy) {
            Ok(()) => 0,
            Err(error) => {
                try_write_line(&format!("peername: the proxy beside the program: {error}"));
                let _ = program.signal(Signal::TERM);
                1
            }
        }
    })?;
    Ok(())
}

/// Starts the proxy, and ends the proxy or the program when the other has exited.
fn supervise(
    pid: u32,
    program: &PidFd,
    sockets: Vec<OwnedFd>,
    proxy: Vec<OsString>,
) -> Result<(), SyscallError> {
    fork::set_thread_name(c"peername-netns");
    // If this process is killed, the proxy ends; the program would be unreachable, so the kernel kills it, too.
    let _kill_on_close = match KillOnClose::new(pid, program) {
        Err(_) if program.has_exited() => return Ok(()),
        armed => armed?,
    };
    let child = ChildProcess::fork(sockets, |sockets| become_proxy(sockets, proxy))?;
    let proxy = child.pidfd();
    while !wait_readable([program.as_fd(), proxy.as_fd()], None)? {}
    let survivor = if program.has_exited() {
        // The program's connections have ended with it.
        proxy
    } else {
        try_write_line("peername: the proxy has exited, so the program is unreachable; ending it");
        program
    };
    let _ = survivor.signal(Signal::TERM);
    if !wait_readable([survivor.as_fd()], Some(GRACE_PERIOD))? {
        let _ = survivor.signal(Signal::KILL);
    }
    let _ = child.wait();
    Ok(())
}

/// Executes the proxy with the sockets passed as by a service manager (sd_listen_fds(3)).
fn become_proxy(sockets: Vec<OwnedFd>, arguments: Vec<OsString>) -> u8 {
    let count = sockets.len().to_string();
    let ready = fork::set_parent_death_signal(Signal::TERM)
        .and_then(|()| raise_ambient(CapabilitySet::NET_RAW | CapabilitySet::NET_BIND_SERVICE))
        .and_then(|()| listen_fds::pass_on_exec(sockets));
    if let Err(error) = ready {
        write_line(format_args!(
            "peername: the proxy beside the program: {error}"
        ));
        return 1;
    }
    fork::unblock_signals();
    let mut command = Command::new("/proc/self/exe");
    command
        .args(arguments)
        .env("LISTEN_FDS", count)
        .env("LISTEN_PID", process::id().to_string())
        .env_remove("LISTEN_FDNAMES");
    // To a service manager the program is the service, not the proxy.
    for variable in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
        command.env_remove(variable);
    }
    write_line(format_args!("peername: {}", become_program(command)));
    1
}

/// From SIGTERM to SIGKILL.
const GRACE_PERIOD: Duration = Duration::from_secs(10);

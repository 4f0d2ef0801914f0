//! The mechanism that changes nothing about a program but its network: it gets one of its own, in which
//! every address is local, and `peername proxy` in between.
//!
//! ```text
//!   outside                │ private network: `local 0.0.0.0/0 dev lo`, `local ::/0 dev lo`
//!                          │
//!   balancer ───▶ listening socket ──▶ peername proxy ──from the client's address──▶ program
//!                 (opened outside,     (own process)                                 (this process)
//!                  inherited)          │
//! ```
//!
//! Because every address is local in there, a connection may come from any, and answers to it stay. On
//! the host nothing is changed and no capability is used: the private network is made in a user
//! namespace where we are not root. The proxy is the one of `peername proxy`, with all it does.
//!
//! The price: the program reaches nothing outside, not even a name server.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::{self, Command};
use std::time::Duration;

use peername_sys::SyscallError;
use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::ipc::listen_fds;
use peername_sys::netlink::{Family, LocalRoute, Netlink, is_family_disabled};
use peername_sys::process::caps::{Capability, is_effective, raise_ambient};
use peername_sys::process::daemonize;
use peername_sys::process::kill_on_close::KillOnClose;
use peername_sys::process::namespace::{
    NetworkNamespace, allow_unprivileged_ports, become_capable_in_new_user_namespace,
};
use peername_sys::process::pidfd::{PidFd, Signal};

use crate::launch::become_program;

/// Why there is no private network.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// This host does not let us have one.
    #[error(
        "{0}: this host does not let ordinary users make namespaces (kernel.unprivileged_userns_clone, \
         kernel.apparmor_restrict_unprivileged_userns); allow it, or run as root"
    )]
    Namespace(SyscallError),
    /// It can't be set up.
    #[error("the private network: {0}")]
    SetUp(SyscallError),
    /// The proxy can't be started.
    #[error("starting the proxy: {0}")]
    Start(#[from] SyscallError),
    /// tokio.
    #[error("starting the runtime for netlink: {0}")]
    Runtime(std::io::Error),
}

/// Moves this process into a private network, and starts `peername` with the arguments `proxy` beside it,
/// to which it hands `sockets`, bound in the network that this process leaves. Execute the program next.
///
/// The proxy ends with this process, and this process with the proxy. It must have one thread only.
///
/// # Errors
///
/// [`NetnsError`].
pub fn start(sockets: Vec<OwnedFd>, proxy: Vec<OsString>) -> Result<(), NetnsError> {
    if !is_effective(Capability::CAP_SYS_ADMIN) {
        become_capable_in_new_user_namespace().map_err(NetnsError::Namespace)?;
    }
    NetworkNamespace::unshare().map_err(NetnsError::Namespace)?;
    set_up()?;
    let mut kept = sockets;
    kept.push(PidFd::current()?.into());
    let pid = process::id();
    daemonize::spawn_detached(kept, |mut sockets| {
        let Some(program) = sockets.pop().map(PidFd::from) else {
            return 1;
        };
        match watch_over((pid, &program), sockets, proxy) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("peername: the proxy beside the program: {error}");
                let _ = program.signal(Signal::TERM);
                1
            }
        }
    })?;
    Ok(())
}

/// Makes every address local, and every port free for all.
fn set_up() -> Result<(), NetnsError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(NetnsError::Runtime)?;
    let made = runtime.block_on(async {
        let netlink = Netlink::open()?;
        netlink.set_loopback_up().await?;
        for family in [Family::V4, Family::V6] {
            let everything = LocalRoute {
                family,
                table: LOCAL_TABLE,
                protocol: BOOT,
            };
            match netlink.add_local_route(&everything).await {
                Err(error) if family == Family::V6 && is_family_disabled(&error) => {}
                added => added?,
            }
        }
        allow_unprivileged_ports()
    });
    made.map_err(NetnsError::SetUp)
}

/// Starts the proxy, and ends it or the program when the other has ended.
fn watch_over(
    (pid, program): (u32, &PidFd),
    sockets: Vec<OwnedFd>,
    proxy: Vec<OsString>,
) -> Result<(), SyscallError> {
    daemonize::set_thread_name(c"peername-netns");
    // If this process is killed, the proxy ends, and the program can't be reached any more.
    let mut kill_on_close = KillOnClose::new()?;
    let _hold = kill_on_close.new_inhibitor(None)?;
    if let Err(error) = kill_on_close.add(pid, || !program.has_exited()) {
        // It may have been quick.
        return match program.has_exited() {
            true => Ok(()),
            false => Err(error),
        };
    }
    let child = daemonize::fork_child(sockets, |sockets| become_proxy(sockets, proxy))?;
    let proxy = PidFd::open(child)?;
    let epoll = Epoll::new()?;
    epoll.add(program, PROGRAM, Interest::Readable)?;
    epoll.add(&proxy, PROXY, Interest::Readable)?;
    let (last, patience) = match first_of(&epoll, None)? {
        // Its connections have ended with it.
        Some(PROGRAM) => (&proxy, PATIENCE),
        _ => {
            eprintln!("peername: the proxy has ended, so nobody reaches the program; ending it");
            (program, PATIENCE)
        }
    };
    let _ = last.signal(Signal::TERM);
    let rest = Epoll::new()?;
    rest.add(last, 0, Interest::Readable)?;
    if first_of(&rest, Some(patience))?.is_none() {
        let _ = last.signal(Signal::KILL);
    }
    daemonize::reap(child);
    Ok(())
}

/// `None` once the time is over, and only then.
fn first_of(epoll: &Epoll, limit: Option<Duration>) -> Result<Option<u64>, SyscallError> {
    let mut found = Vec::new();
    epoll.wait(limit, &mut found)?;
    Ok(found.first().map(|found| found.token))
}

/// As a service manager would start it (sd_listen_fds(3)).
fn become_proxy(sockets: Vec<OwnedFd>, arguments: Vec<OsString>) -> u8 {
    let count = sockets.len().to_string();
    let ready = daemonize::set_parent_death_signal()
        .and_then(|()| raise_ambient(&[Capability::CAP_NET_RAW, Capability::CAP_NET_BIND_SERVICE]))
        .and_then(|()| listen_fds::pass_on_exec(sockets));
    if let Err(error) = ready {
        eprintln!("peername: the proxy beside the program: {error}");
        return 1;
    }
    daemonize::unblock_signals();
    let mut command = Command::new("/proc/self/exe");
    command
        .args(arguments)
        .env("LISTEN_FDS", count)
        .env("LISTEN_PID", process::id().to_string())
        .env_remove("LISTEN_FDNAMES");
    // Of the service manager, if there is one, the program is the service.
    for variable in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
        command.env_remove(variable);
    }
    eprintln!("peername: {}", become_program(command));
    1
}

const PROGRAM: u64 = 0;
const PROXY: u64 = 1;
/// From SIGTERM to SIGKILL.
const PATIENCE: Duration = Duration::from_secs(10);
/// RT_TABLE_LOCAL: it is asked first, before any rule.
const LOCAL_TABLE: u32 = 255;
/// RTPROT_BOOT: set up when the network came up.
const BOOT: u8 = 3;

//! The supervisor: answers accept(2) and getpeername(2) of programs that no library reaches (seccomp_unotify(2)).
//!
//! ```text
//!   this process ──fork──▶ supervisor ─────────fork────────▶ monitor
//!        │ filter              │ accepts for the program,       │ ends the program
//!        │ exec                │ reads headers, answers         │ if the supervisor is killed
//!        ▼                     │ with the stripped connection   │
//!     program ────accept()────▶┘◀────────────watches────────────┘
//! ```
//!
//! The program keeps this process: its id, parent, terminal and exit code. The supervisor and its monitor are not its
//! children, and exit after the last process with the filter. Bytes never pass through them: once accepted, a connection
//! is the program's alone.
//!
//! Nothing is enforced against the program: a thread that changes a call's arguments while the supervisor reads them may see
//! its balancer as its client, and deceives only itself.

mod config;
mod denial_log;
mod epoll_token;
mod inflight_calls;
mod listener_cache;
mod pending_accepts;
pub mod reasons;
mod refusal_log;
mod supervisor;
mod supervisor_monitor;

use std::os::fd::{AsFd, OwnedFd};
use std::process;

use peername_identity::{FILTER_PROBE, FILTER_PROBE_ERRNO};
use peername_sys::ipc::fd_passing;
use peername_sys::process::caps::{CapabilitySet, is_effective, keep_only, set_no_new_privs};
use peername_sys::process::pidfd::PidFd;
use peername_sys::process::{fork, limits};
use peername_sys::seccomp::{self, Bypass, Getsockname, NoNewPrivs, NotificationListener};
use peername_sys::{NameCall, SyscallError, kernel_release};

use inflight_calls::SupervisedCalls;
use supervisor::Supervisor;
use supervisor_monitor::FirstProcess;

pub use config::SupervisorConfig;
pub(crate) use denial_log::DenialLog;
pub(crate) use inflight_calls::InflightCalls;
pub(crate) use supervisor::HandedBackCall;

use crate::stderr_line::try_write_line;
use crate::table::SharedTable;

/// An error returned by [`start`].
#[derive(Debug, thiserror::Error)]
pub enum NotifyError {
    /// The filter can't be installed.
    #[error(
        "{0}: every accept(2) has to go through the library or the supervisor, which needs Linux 5.14 (this is {release}), \
         permission for seccomp(2), and no other supervisor above (EBUSY), as some container managers install; --mode \
         netns needs none of these",
        release = kernel_release()
    )]
    Filter(SyscallError),
    /// /proc can't be used.
    #[error(
        "{0}: the program's processes are found by /proc: mount that of this PID namespace (`unshare --pid --fork \
         --mount-proc`, proc(5))"
    )]
    Proc(SyscallError),
    /// Another system call failed.
    #[error("starting the supervisor: {0}")]
    Start(SyscallError),
    /// The supervisor exited before it was ready.
    #[error("the supervisor exited while it started; its message is above")]
    Ended,
}

/// Starts the supervisor, and installs the filter on this process and whatever it will execute. Every later accept(2)
/// passes through the filter, so execute the program next.
///
/// This process must have one thread only.
pub fn start(mut config: SupervisorConfig) -> Result<NoNewPrivs, NotifyError> {
    PidFd::check_proc().map_err(NotifyError::Proc)?;
    let (settings, has_library) = (config.table.settings(), config.table_file.is_some());
    let program = process::id();
    let process = PidFd::current().map_err(NotifyError::Start)?;
    let (ours, theirs) = fd_passing::seqpacket_pair().map_err(NotifyError::Start)?;
    let admin = config.admin.take();
    let has_admin = admin.is_some();
    let inherited: Vec<OwnedFd> = [theirs, process.into()].into_iter().chain(admin).collect();
    fork::spawn_detached(inherited, |mut inherited| {
        config.admin = has_admin.then(|| inherited.pop()).flatten();
        let Ok([launcher, process]) = <[OwnedFd; 2]>::try_from(inherited) else {
            return 1;
        };
        let first = FirstProcess {
            pid: program,
            process: process.into(),
        };
        let supervised = supervise(&mut config, launcher, first);
        config.table_file.iter().for_each(SharedTable::remove);
        match supervised {
            Ok(()) => 0,
            Err(error) => {
                try_write_line(&format!("peername: the supervisor has exited: {error}"));
                1
            }
        }
    })
    .map_err(NotifyError::Start)?;
    let Some((supervisor, _)) = fd_passing::receive_word(&ours).map_err(NotifyError::Start)? else {
        return Err(NotifyError::Ended);
    };
    seccomp::allow_ptrace_by(u32::try_from(supervisor).unwrap_or_default());
    let getsockname = if settings.policy().show_destination {
        Getsockname::Notify
    } else {
        Getsockname::Allow
    };
    let bypass = has_library.then_some(Bypass {
        pass: settings.pass(),
        probe: FILTER_PROBE,
        probe_errno: FILTER_PROBE_ERRNO,
    });
    let installed = seccomp::install(getsockname, bypass.as_ref());
    let (listener, no_new_privs) = installed.map_err(NotifyError::Filter)?;
    fd_passing::send_word(&ours, 0, Some(listener.as_fd())).map_err(NotifyError::Start)?;
    match fd_passing::receive_word(&ours).map_err(NotifyError::Start)? {
        Some(_) => Ok(no_new_privs),
        None => Err(NotifyError::Ended),
    }
}

/// Answers the calls of a container by a process outside of its network, until one can't be answered there, which is returned.
/// `None` if no process is left, or `stop` is readable. No connection is accepted, so that no header is read.
pub(crate) fn wait_first_accept(
    config: &SupervisorConfig,
    calls: &NotificationListener,
    inflight: InflightCalls,
    stop: &OwnedFd,
) -> Result<Option<HandedBackCall>, SyscallError> {
    let calls = calls.try_clone()?;
    let stop = stop.try_clone().call("fcntl(F_DUPFD_CLOEXEC)")?;
    let mut supervisor = Supervisor::new(config, SupervisedCalls { calls, inflight }, None)?;
    supervisor.stop_at(stop)?;
    supervisor.hand_back_first_accept();
    supervisor.adopt_inflight();
    supervisor.run()
}

/// Supervises the processes of a filter that a container runtime has installed, in this process, until no process is left or
/// `stop` is readable. The calls in `inflight` were received by an earlier supervisor and not answered.
pub(crate) fn supervise_filter(
    config: &SupervisorConfig,
    calls: NotificationListener,
    inflight: InflightCalls,
    stop: OwnedFd,
) -> Result<(), SyscallError> {
    if is_effective(CapabilitySet::SYS_PTRACE) {
        keep_only(CapabilitySet::SYS_PTRACE)?;
    } else {
        set_no_new_privs()?;
    }
    let mut supervisor = Supervisor::new(config, SupervisedCalls { calls, inflight }, None)?;
    supervisor.stop_at(stop)?;
    supervisor.adopt_inflight();
    supervisor.run()?;
    Ok(())
}

/// Drops capabilities. The supervisor reads bytes of untrusted peers, so it keeps only what it uses on the program's
/// processes, some of which may have other users: CAP_SYS_PTRACE for their descriptors and memory, CAP_KILL to end them.
///
/// Without CAP_SYS_PTRACE, as in most containers, the kernel gives access only to processes with no more capabilities than
/// the supervisor has (ptrace(2), access mode checking). Then the supervisor keeps all that it has, and can't gain others by
/// execve(2).
pub(crate) fn drop_capabilities() -> Result<(), SyscallError> {
    if is_effective(CapabilitySet::SYS_PTRACE) {
        keep_only(CapabilitySet::SYS_PTRACE | CapabilitySet::KILL)
    } else {
        set_no_new_privs()
    }
}

/// Runs the supervisor's process, until no process with the filter is left.
fn supervise(
    config: &mut SupervisorConfig,
    launcher: OwnedFd,
    program: FirstProcess,
) -> Result<(), SyscallError> {
    limits::raise_open_files()?;
    fd_passing::send_word(&launcher, process::id().into(), None)?;
    let Some((_, Some(listener))) = fd_passing::receive_word(&launcher)? else {
        // The launcher has failed, and reports that itself.
        return Ok(());
    };
    let supervised = SupervisedCalls {
        calls: NotificationListener::from(listener),
        inflight: InflightCalls::new()?,
    };
    drop_capabilities()?;
    let mut supervisor = Supervisor::new(config, supervised, Some(program))?;
    if let Some(socket) = config.admin.take() {
        supervisor.answer_admin(socket)?;
    }
    fd_passing::send_word(&launcher, 0, None)?;
    drop(launcher);
    supervisor.run()?;
    Ok(())
}

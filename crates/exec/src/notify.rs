//! The mechanism for programs that no library reaches: their accept(2) and getpeername(2) are answered by
//! a supervisor (seccomp_unotify(2)).
//!
//! ```text
//!   this process ──fork──▶ supervisor ─────────fork────────▶ guardian
//!        │ filter              │ accepts for the program,       │ ends the program
//!        │ exec                │ reads headers, answers         │ if the supervisor is killed
//!        ▼                     │ with the stripped connection   │
//!     program ────accept()────▶┘◀────────────watches────────────┘
//! ```
//!
//! The program keeps this process: its number, its parent, its terminal, its exit code. The supervisor
//! and the guardian are not its children, and end when the last process with the filter has ended. Bytes
//! never pass through them: once accepted, a connection is the program's alone.
//!
//! What it does not do: enforce anything against the program. A thread that changes a call's arguments
//! while they are read may see its balancer as its client; it fools itself only.

mod acceptors;
mod guardian;
mod ledger;
mod listeners;
mod monitor;
mod refusals;
mod supervisor;
mod threads;
mod waits;

use std::os::fd::{AsFd, OwnedFd};
use std::process;
use std::time::Duration;

use peername_identity::{PROBE, PROBE_ERRNO, Table};
use peername_sys::ipc::fd_passing;
use peername_sys::process::caps::{Capability, is_effective, keep_only, set_no_new_privs};
use peername_sys::process::pidfd::PidFd;
use peername_sys::process::{daemonize, limits};
use peername_sys::seccomp::{self, Bypass, Getsockname, NoNewPrivs, NotificationListener};
use peername_sys::{SyscallError, kernel_release};

use ledger::Ledger;
use supervisor::Supervisor;

use crate::table::SharedTable;

/// What the supervisor needs to know.
#[derive(Debug)]
pub struct Settings {
    /// Where it finds whom to trust and which ports expect headers, and remembers who is who.
    pub table: Table<'static>,
    /// From accept to the complete header.
    pub header_timeout: Duration,
    /// If the program is started with the library: the path by which it finds the table, which is removed once no process
    /// of the program is left. What the library accepts does not pass through the supervisor.
    pub library: Option<SharedTable>,
    /// Log each refused connection, not only the first of each reason in ten seconds.
    pub verbose: bool,
}

/// Why there is no supervisor.
#[derive(Debug, thiserror::Error)]
pub enum NotifyError {
    /// The filter can't be put in place.
    #[error(
        "{0}: every accept(2) has to go by the library or the supervisor, which needs Linux 5.14 (this is {release}), \
         seccomp(2) allowed, and no other supervisor above (EBUSY), as some container managers are; --mode netns needs \
         none of it",
        release = kernel_release()
    )]
    Filter(SyscallError),
    /// Something else of the system's.
    #[error("starting the supervisor: {0}")]
    Start(SyscallError),
    /// It ended before it was ready.
    #[error("the supervisor ended while it started; what it said stands above")]
    Ended,
}

/// Starts the supervisor and puts this process, and whatever it will execute, under it. All that is
/// accepted from now on comes from it, so execute the program next.
///
/// This process must have one thread only.
///
/// # Errors
///
/// The kernel is too old or does not let us; or somebody else supervises already.
pub fn start(settings: Settings) -> Result<NoNewPrivs, NotifyError> {
    let started = NotifyError::Start;
    let (table_settings, has_library) = (settings.table.settings(), settings.library.is_some());
    let program = process::id();
    let target = PidFd::current().map_err(started)?;
    let (ours, theirs) = fd_passing::seqpacket_pair().map_err(started)?;
    daemonize::spawn_detached([theirs, target.into()], |[line, target]| {
        let ended = supervise(&settings, line, program, target.into());
        settings.library.iter().for_each(SharedTable::remove);
        match ended {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("peername: the supervisor has ended: {error}");
                1
            }
        }
    })
    .map_err(started)?;
    let Some((supervisor, _)) = fd_passing::receive_word(&ours).map_err(started)? else {
        return Err(NotifyError::Ended);
    };
    seccomp::allow_ptrace_by(u32::try_from(supervisor).unwrap_or_default());
    let own_names = match table_settings.policy().show_destination {
        true => Getsockname::Notify,
        false => Getsockname::Allow,
    };
    let bypass = has_library.then_some(Bypass {
        pass: table_settings.pass(),
        probe: PROBE,
        probe_errno: PROBE_ERRNO,
    });
    let installed = seccomp::install(own_names, bypass.as_ref());
    let (listener, gaining) = installed.map_err(NotifyError::Filter)?;
    fd_passing::send_word(&ours, 0, Some(listener.as_fd())).map_err(started)?;
    match fd_passing::receive_word(&ours).map_err(started)? {
        Some(_) => Ok(gaining),
        None => Err(NotifyError::Ended),
    }
}

/// It reads what strangers send, so it keeps no more of root's privileges than it uses on the program's processes, some of
/// which may have other users: their descriptors and memory (CAP_SYS_PTRACE), and to end them (CAP_KILL).
///
/// Without CAP_SYS_PTRACE, as in most containers, the kernel lets it look at a process only whose capabilities it has,
/// too (ptrace(2), access mode checking). Then all of them stay, and execve(2) gives it no others.
fn give_up_privileges() -> Result<(), SyscallError> {
    match is_effective(Capability::CAP_SYS_PTRACE) {
        true => keep_only(&[Capability::CAP_SYS_PTRACE, Capability::CAP_KILL]),
        false => set_no_new_privs(),
    }
}

/// The supervisor's process, from its start until no process with the filter is left.
fn supervise(
    settings: &Settings,
    line: OwnedFd,
    program: u32,
    target: PidFd,
) -> Result<(), SyscallError> {
    limits::raise_open_files()?;
    fd_passing::send_word(&line, process::id().into(), None)?;
    // Without a listener: the launcher has failed, and says so itself.
    let Some((_, Some(listener))) = fd_passing::receive_word(&line)? else {
        return Ok(());
    };
    let calls = NotificationListener::from(listener);
    let ledger = Ledger::new()?;
    give_up_privileges()?;
    let supervisor = Supervisor::new(settings, calls, ledger, (program, target))?;
    fd_passing::send_word(&line, 0, None)?;
    drop(line);
    supervisor.run()
}

//! `--fail-on-deny`: the program is a child, whose exit code is replaced if something was denied.
//!
//! ```text
//! this process ── fork ──▶ the jail, which becomes the program
//!   waits for its exit ◀── exit code
//!   waits for the verdict ◀── interceptor, once it has written its last audit lines
//! ```
//!
//! Without the option there is no such parent: the process that was started becomes the program.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use peername_daemon::command::block_on;
use peername_daemon::usage::UsageError;
use peername_daemon::usage::error_text::with_causes;
use peername_sys::ipc::fd_passing::{receive_bytes, send_bytes, seqpacket_pair};
use peername_sys::process::fork;
use peername_sys::process::launch::exit_code::LAUNCHER_FAILED;
use peername_sys::process::pidfd::{PidFd, Signal};
use peername_sys::process::stderr::write_line;
use peername_sys::process::{secrets, terminal};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit_code::{REQUEST_DENIED, WRONG_USAGE};

/// Runs `start` in a child, which passes the verdict's channel to the interceptor and becomes the program. Returns the exit
/// code of the program, or [`REQUEST_DENIED`].
pub(super) fn run(start: impl FnOnce(OwnedFd) -> anyhow::Result<u8>) -> anyhow::Result<ExitCode> {
    // The child masks its own copy only, and this process stays until the end.
    secrets::mask_arguments()?;
    let (verdicts, sender) = seqpacket_pair()?;
    let child = fork::fork(|| failure_code(start(sender)))?;
    let program = PidFd::open(child)?;
    block_on(wait_exit(program))?;
    let code = shell_exit_code(fork::wait_exit(child)?);
    let mut verdict = [0];
    let is_known = receive_bytes(&verdicts, &mut verdict)?.0 == verdict.len();
    Ok(match (code, is_known, verdict) {
        (0, true, [VERDICT_DENIED]) => ExitCode::from(REQUEST_DENIED),
        (0, false, _) => {
            write_line("peername: the interceptor was killed: it is not known what was denied");
            ExitCode::from(LAUNCHER_FAILED)
        }
        _ => ExitCode::from(code),
    })
}

/// Sends the verdict to the parent. Called by the interceptor.
pub(super) fn send_verdict(channel: &OwnedFd, is_anything_denied: bool) {
    let verdict = if is_anything_denied {
        VERDICT_DENIED
    } else {
        VERDICT_CLEAN
    };
    // The parent may have been killed.
    let _ = send_bytes(channel, &[verdict], None);
}

/// Waits until the program has exited, and forwards signals to it.
async fn wait_exit(program: PidFd) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut quit = signal(SignalKind::quit())?;
    let mut user1 = signal(SignalKind::user_defined1())?;
    let mut user2 = signal(SignalKind::user_defined2())?;
    let exited = program.try_clone()?.wait_exit();
    tokio::pin!(exited);
    loop {
        let signal = tokio::select! {
            ended = &mut exited => return Ok(ended?),
            _ = terminate.recv() => Signal::TERM,
            _ = hangup.recv() => Signal::HUP,
            _ = interrupt.recv() => Signal::INT,
            _ = quit.recv() => Signal::QUIT,
            _ = user1.recv() => Signal::USR1,
            _ = user2.recv() => Signal::USR2,
        };
        // The terminal sends a typed signal to every process in the foreground, the program included.
        let is_typed = matches!(signal, Signal::INT | Signal::QUIT) && terminal::is_foreground();
        if !is_typed {
            let _ = program.signal(signal);
        }
    }
}

/// The exit code of a child that has not become the program. Prints the error on standard error.
fn failure_code(started: anyhow::Result<u8>) -> u8 {
    started.unwrap_or_else(|error| {
        write_line(format_args!("peername: {}", with_causes(&error)));
        if error.is::<UsageError>() {
            return WRONG_USAGE;
        }
        LAUNCHER_FAILED
    })
}

/// The exit code as a shell reports it: 128 + N for a program that signal N has killed.
fn shell_exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(LAUNCHER_FAILED)
}

const VERDICT_DENIED: u8 = b'd';
const VERDICT_CLEAN: u8 = b'-';

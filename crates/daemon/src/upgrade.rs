//! Upgrade without loss: the binary that is now at the path of this process takes over its sockets.
//!
//! ```text
//! old process            launcher                      new process
//! SIGUSR2 ── Launch ───▶ fork, execve ───────────────▶ start
//!         ◀─ Started ──
//!         ── Hello, Sockets ─────────────────────────▶ adopt what the configuration wants, prepare everything else
//!         ◀──────────────────────────── Prepared ────
//!   UDP workers stop reading
//!         ── Sessions ───────────────────────────────▶ keep them
//!         ◀──────────────────────────────── Ready ────
//!         ── Release ──▶ exit
//!         ── Serve ──────────────────────────────────▶ serve
//!   drain
//! ```
//!
//! Until `Serve` is sent, any error ends the new process and leaves the old one as it was: it keeps all its sockets and
//! sessions, of which the new process has duplicates. The new process must be forked by one that still has the privileges
//! of the start and is not confined: the launcher, which is forked before anything is opened.

mod attempt;
mod launcher;
pub mod request;
mod successor;

use peername_sys::process::limits::raise_open_files;

use crate::handover::Predecessor;
use crate::usage::UsageError;
use launcher::Launcher;

pub use attempt::Upgrades;
pub use successor::Upgrader;

/// Begins a long-running command: forks the launcher, and receives the sockets of a previous process, if that has started
/// this one. To be called first, before there are threads, open sockets or secrets.
pub fn begin(command: &'static str) -> anyhow::Result<(Upgrader, Option<Predecessor>)> {
    let upgrader = Upgrader::new(command, Launcher::fork());
    // The kernel drops received sockets beyond the limit of descriptors.
    raise_open_files()?;
    let previous = Predecessor::receive()?;
    if let Some(Predecessor { command: other, .. }) = &previous
        && other != command
    {
        let usage =
            format!("the process to replace is `peername {other}`, not `peername {command}`");
        return Err(UsageError(usage).into());
    }
    Ok((upgrader, previous))
}

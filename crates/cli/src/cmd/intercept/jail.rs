//! `peername jail`: runs a program whose only way out is the interceptor.
//!
//! ```text
//! this process                            supervisor ── interceptor
//!   fork ───────────────────────────────▶ (outside, never confined by the namespaces)
//!   enter the jail's network
//!   ── listening sockets ───────────────────────────▶ start
//!   cover files, fork ───▶ mediator (in the jail)
//!   ◀─────────────────────────────────────── ready ──
//!   confine this process, execute the program               serve
//!   exit ───────────────────────────────────────────▶ exit
//!                                         remove the private directory
//! ```

mod approval;
mod ask;
mod command_line;
mod denial_report;
mod environment;
mod fail_on_deny;
mod file_table;
mod helper;
mod hidden;
mod in_jail;
mod interceptor;
mod learn;
mod mediator_channel;
mod mistake;
pub(crate) mod options;

use std::os::fd::OwnedFd;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use peername_intercept::ca::{Authority, AuthorityOptions, CertificateDer};
use peername_intercept::upstream::trust::TrustError;
use peername_jail::files::{self, PrivateDir, TrustFiles};
use peername_jail::host_servers::HostServers;
use peername_jail::mediator::{self, MediatorConfig, ports::ListenerPorts, refusals::RefusalLog};
use peername_jail::{confine, network};
use peername_sys::ipc::fd_passing;
use peername_sys::process::fork;
use peername_sys::process::pidfd::{PidFd, Signal};
use peername_sys::process::secrets;
use peername_sys::process::stderr::write_line;
use peername_sys::random;
use peername_sys::seccomp::Mediation;

use super::setup::open_authority;
use crate::cmd::ca::default_common_name;
use crate::cmd::ca::trust_store::{self, TrustStore};
use crate::launcher;
pub(crate) use command_line::CommandLine;
use hidden::{hidden_paths, hide_log, refuse_directories_as_streams, refuse_hard_links};
use interceptor::Interceptor;
pub(crate) use mistake::explain_mistake;
use options::Args;

/// Executes the program. Returns only if that fails, or if a child is the program (`--fail-on-deny`, `--check-list`): the exit
/// code, or [`UsageError`](peername_daemon::usage::UsageError) if the options contradict each other.
pub(crate) fn run(line: &CommandLine) -> anyhow::Result<ExitCode> {
    let args = &line.resolve()?;
    if args.fails_on_deny() {
        fail_on_deny::run(|verdict| start(args, Some(verdict)))
    } else {
        launcher::exit_code(start(args, None).map(ExitCode::from))
    }
}

/// Starts the jail and executes the program in it. Returns only if that fails: the exit code if execve(2) has failed, else the
/// error. On `verdict` the interceptor reports at its end whether it has denied anything.
fn start(args: &Args, verdict: Option<OwnedFd>) -> anyhow::Result<u8> {
    try_start(args, verdict).map_err(|error| match &args.table {
        Some(table) => table.locate(error),
        None => error,
    })
}

fn try_start(args: &Args, verdict: Option<OwnedFd>) -> anyhow::Result<u8> {
    secrets::mask_arguments()?;
    // Before the directory of --ca is opened, because a directory that can't be hidden is the wrong one.
    let mut hidden = hidden_paths(args)?;
    let authority = authority(args)?;
    let allowed = args.allowed_sockets()?;
    refuse_directories_as_streams()?;
    refuse_hard_links(args)?;
    let certificates = authority.certificates();
    let host_roots = Arc::new(trust_store::host_roots(None));
    if host_roots.certs.is_empty() && args.intercept.0.extra_ca.is_empty() {
        // Without this check, the interceptor would fail only after the jail was made.
        return Err(TrustError::no_roots(&host_roots).into());
    }
    let interceptor = Interceptor::new(args, authority, Arc::clone(&host_roots))?;
    print_notices(args, interceptor.denies_everything()?);
    let ports = interceptor.ports.all();
    let answered = interceptor.answered_on_loopback(args)?;
    let dir = PrivateDir::create(&format!("{:016x}", random::words::<1>()?[0]))?;
    let (to_mediator, to_interceptor) = fd_passing::seqpacket_pair()?;
    let parent = verdict.is_some().then(parent_id);
    let channel = spawn(interceptor, &dir, to_mediator, verdict).inspect_err(|_| dir.remove())?;
    hide_log(args, &mut hidden);
    let trust = trust_files(&certificates, &host_roots.certs, &args.intercept.0.extra_ca);
    drop(host_roots);
    let host_servers = HostServers::open();
    let sockets = network::enter(&ports)?;
    interceptor::send_sockets(&channel, &sockets)?;
    drop(sockets);
    let covered = files::cover(&dir, &trust, &hidden).or_else(|error| {
        // The directory is removed once the interceptor has exited: then that exit is the cause.
        wait_interceptor(&channel).and(Err(error.into()))
    })?;
    // The mediator, which is forked below, would keep a copy.
    drop(trust);
    let mut command = launcher::command(&args.command);
    environment::prepare(&mut command, &dir, &covered)?;
    let mediator = mediator::spawn(MediatorConfig {
        allowed,
        ports: ListenerPorts::new(to_interceptor, &ports, answered, host_servers),
        covers: covered.files,
        refusals: refusal_log(args),
    })?;
    wait_interceptor(&channel)?;
    if confine::confine(mediator, args.allow_mounts)? == Mediation::Unmediated {
        if parent.is_some() {
            bail!(
                "another jail or a container manager supervises system calls already, so refused ports can't be seen: \
                 --fail-on-deny and --check-list need a jail of their own"
            );
        }
        write_line(
            "peername: another jail or a container manager supervises system calls already: the program can't open Unix sockets",
        );
    }
    if let Some(parent) = parent {
        end_with_parent(parent)?;
    }
    Ok(launcher::try_execute(command))
}

/// Prints, before the program runs, what the options allow or deny beyond what is expected.
fn print_notices(args: &Args, denies_everything: bool) {
    if denies_everything && !args.logging.quiet {
        let advice = match command_line::find_unused_table(args) {
            Some(file) => format!(
                "{file} has a [jail] table, which `peername jail --config {file} -- CMD` applies: read it before"
            ),
            None => "`peername jail --learn FILE -- CMD` writes the list of what CMD needs, --allow @FILE allows that, and --allow any \
                     allows every public host"
                .to_owned(),
        };
        write_line(format_args!(
            "peername: no --allow and no --check: every request is denied. {advice}"
        ));
    }
    if let Some(path) = &args.learn {
        let path = path.display();
        write_line(format_args!(
            "peername: EVERYTHING IS ALLOWED (--learn): the program may send any request to every public host; {path} gets the list"
        ));
    }
    if args.allow_mounts {
        write_line(
            "peername: THE PROGRAM MAY CHANGE MOUNTS (--allow-mounts): it can uncover hidden files",
        );
    }
    if let Some(variable) = environment::ignored_proxy()
        && args.intercept.0.upstream_proxy.is_none()
        && !args.logging.quiet
    {
        write_line(format_args!(
            "peername: {variable} is not used in a jail: where only that proxy reaches other hosts, give it as --upstream-proxy URL"
        ));
    }
}

/// Which refused Unix sockets are named on standard error.
fn refusal_log(args: &Args) -> RefusalLog {
    if args.logging.verbose > 0 {
        RefusalLog::All
    } else if args.logging.quiet {
        RefusalLog::Off
    } else {
        RefusalLog::from_environment()
    }
}

/// Has the kernel end this process when its parent exits. The parent waits for the program, and nothing else would report by
/// the exit code that something was denied.
fn end_with_parent(parent: u32) -> anyhow::Result<()> {
    fork::set_parent_death_signal(Signal::TERM)?;
    // The parent may have exited before prctl(2).
    if parent_id() != parent {
        bail!("the process that waits for the program was killed");
    }
    Ok(())
}

/// Waits until the interceptor serves. If it does not start, it has printed its error.
fn wait_interceptor(channel: &OwnedFd) -> anyhow::Result<()> {
    if !interceptor::wait_ready(channel)? {
        bail!("the interceptor did not start");
    }
    Ok(())
}

/// Starts the interceptor in this host's network, and its supervisor, which removes the directory once the interceptor has
/// exited. Returns the channel to the interceptor.
fn spawn(
    mut interceptor: Interceptor,
    dir: &PrivateDir,
    to_mediator: OwnedFd,
    verdict: Option<OwnedFd>,
) -> anyhow::Result<OwnedFd> {
    let (channel, interceptor_end) = fd_passing::seqpacket_pair()?;
    let program = PidFd::current()?;
    let mut inherited = vec![interceptor_end, program.into(), to_mediator];
    inherited.extend(interceptor.open_log()?);
    inherited.extend(interceptor.start_helper()?);
    inherited.extend(verdict);
    fork::spawn_detached(inherited, |inherited| {
        fork::set_thread_name(c"peername-jail");
        let _ = secrets::disable_core_dumps();
        let child = fork::fork_child(inherited, |inherited| interceptor.run(inherited));
        let ended = child.and_then(fork::wait_exit);
        dir.remove();
        u8::from(ended.is_err())
    })?;
    Ok(channel)
}

/// The files by which the program trusts the authority, beside the roots of the host. They also have the authorities of
/// `--extra-ca`, because a connection that is relayed unopened shows the origin's certificate.
fn trust_files(
    authority: &[CertificateDer<'static>],
    host_roots: &[CertificateDer<'static>],
    extra_ca: &[PathBuf],
) -> TrustFiles {
    let extra: Vec<_> = extra_ca
        .iter()
        .flat_map(|path| trust_store::read(path))
        .collect();
    let own = [authority, &extra[..]].concat();
    let store = TrustStore::merged(&own, host_roots, None);
    TrustFiles {
        authority: store.extra,
        bundle: store.bundle,
        java: store.java,
        hashed: trust_store::pem_by_subject_hash(&own),
    }
}

fn authority(args: &Args) -> anyhow::Result<Authority> {
    Ok(match args.ca() {
        Some(dir) => open_authority(dir)?,
        None => Authority::ephemeral(&AuthorityOptions {
            common_name: default_common_name(),
            days: EPHEMERAL_DAYS,
            permitted: Vec::new(),
        })?,
    })
}

/// The lifetime of an authority that ends with the program.
const EPHEMERAL_DAYS: u16 = 365;

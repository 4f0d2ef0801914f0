//! `peername exec`: runs a server in which accept(2) and getpeername(2) return the true client. With `--connect` it runs a client,
//! and puts PROXY headers on its connections.

pub(crate) mod admin;
pub(crate) mod agent;
mod clients;
mod connect;
mod inherited;
pub(crate) mod listener_policy_args;
mod netns;
mod options;
pub(crate) mod unit;

use std::env;
use std::process::{Command, ExitCode};
use std::rc::Rc;

use peername_daemon::options::Given;
use peername_exec::client_judge::ClientJudge;
use peername_exec::interfaces::{self, InterfaceError};
use peername_exec::library::{self, Library};
use peername_exec::notify::{self, SupervisorConfig};
use peername_exec::program::Mechanism;
use peername_exec::table::{SharedTable, TableRules};
use peername_sys::process::launch::exit_code::LAUNCHER_FAILED;
use peername_sys::process::stderr::write_line;
use peername_sys::seccomp::NoNewPrivs;

use crate::jail_note::note_jail;
use crate::launcher::{self, execute};
pub(crate) use options::Args;
use options::Mode;

/// Executes the program; returns only if that fails: with exit code 125, 126 or 127, or a usage error if the options contradict
/// each other.
/// With `--unit`, writes a drop-in instead.
pub(crate) fn run(given: &Given<Args>) -> anyhow::Result<ExitCode> {
    given.options.check_source()?;
    match &given.options.unit.name {
        Some(name) => unit::run(given, name),
        None => launcher::exit_code(start(given).map_err(note_jail)),
    }
}

fn start(given: &Given<Args>) -> anyhow::Result<ExitCode> {
    let args = &given.options;
    if let Some(source) = args.sent_header.source {
        return Ok(connect::run(args, source));
    }
    args.check_mode()?;
    if let Some(fd) = inherited::find_connection(&args.listener_policy)? {
        write_line(format_args!(
            "peername: descriptor {fd} is a connection that was accepted before, as by inetd or a systemd socket with \
             Accept=yes: exec reads the headers of connections that the server itself accepts, so the server would take its \
             balancer for its client. Let the server listen, or the socket have Accept=no"
        ));
        return Ok(ExitCode::from(LAUNCHER_FAILED));
    }
    if let Some(fd) = inherited::find_foreign_listener(&args.listener_policy)? {
        write_line(format_args!(
            "peername: descriptor {fd} is a listener of another network, as of a systemd socket whose service has \
             PrivateNetwork=yes: from here its connections can't be served when their header is slow, nor be found once they are \
             closed. Start the server in the listener's network"
        ));
        return Ok(ExitCode::from(LAUNCHER_FAILED));
    }
    let judge = args.listener_policy.client_judge()?;
    let rules = TableRules {
        show_destination: args.dst,
        ..args.listener_policy.table_rules(judge.is_some())?
    };
    let mut command = launcher::command(&args.command);
    if args.mode == Mode::Netns {
        netns::start(given)?;
        return Ok(execute(command));
    }
    let (mechanism, reason) = match args.mechanism(command.get_program()) {
        Ok(chosen) => chosen,
        Err(error) => {
            write_line(format_args!("peername: {error}"));
            return Ok(ExitCode::from(error.exit_code()));
        }
    };
    if mechanism == Mechanism::Preload && reason.rules_out_preloading() {
        write_line(format_args!(
            "peername: {reason}: --mode preload does not reach it, and it would take its balancer for \
             its client; use --mode notify or netns"
        ));
        return Ok(ExitCode::from(LAUNCHER_FAILED));
    }
    let interfaces = interfaces::check(mechanism == Mechanism::Preload)?;
    report_missing_interfaces(&interfaces.missing);
    let rules = TableRules {
        listing: interfaces.listing,
        ..rules
    };
    let no_new_privs = supervise(given, mechanism, &rules, judge, &mut command)?;
    report_lost_privileges(no_new_privs);
    Ok(execute(command))
}

/// Starts the supervisor. With `--mode preload`, `command` loads the library, which opens the table by its path. With
/// `--mode notify` the path is removed: only the supervisor uses the table, and has it mapped.
fn supervise(
    given: &Given<Args>,
    mechanism: Mechanism,
    rules: &TableRules,
    judge: Option<Rc<dyn ClientJudge>>,
    command: &mut Command,
) -> anyhow::Result<NoNewPrivs> {
    let args = &given.options;
    let library = match mechanism {
        Mechanism::Preload => Some(Library::Accept.find()?),
        Mechanism::Notify => None,
    };
    let table = SharedTable::create(args.listener_policy.slots(), rules)?;
    match &library {
        Some(library) => library::set_environment(command, library, &table),
        None => table.remove(),
    }
    let admin = admin::start(given, table.table()).inspect_err(|_| table.remove())?;
    let started = notify::start(SupervisorConfig {
        table: table.table(),
        header_timeout: args.listener_policy.headers.header_timeout,
        table_file: library.map(|_| table.clone()),
        judge,
        warns_of_other_ports: env::var_os("LISTEN_FDS").is_none(),
        verbose: args.verbose > 0,
        admin,
    });
    Ok(started.inspect_err(|_| table.remove())?)
}

/// Reports no_new_privs, also without `-v`, since it may break set-user-ID programs that the program starts.
fn report_lost_privileges(no_new_privs: NoNewPrivs) {
    if no_new_privs == NoNewPrivs::Set {
        write_line(
            "peername: no_new_privs is set: sudo, su, sendmail and other set-user-ID programs get no privileges when the program \
             starts them (start as root, or with CAP_SYS_ADMIN, to keep them)",
        );
    }
}

/// Reports the interfaces that this kernel lacks. Only processes without the library need them, so this is no error: with
/// `--mode preload` there may be no such process.
fn report_missing_interfaces(missing: &[InterfaceError]) {
    for error in missing {
        write_line(format_args!(
            "peername: {error}. Processes without the library (static, 32-bit, or started by sudo) can't accept"
        ));
    }
}

//! `peername exec`: runs a server, in which accept(2) and getpeername(2) return the true client, or a client, with PROXY
//! headers on its connections.

mod accepted;
mod admin;
mod clients;
mod connect;
mod netns;

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use peername_daemon::admin::AdminArgs;
use peername_daemon::options::Given;
use peername_daemon::usage::Usage;
use peername_daemon::value::{self};
use peername_exec::client_judge::ClientJudge;
use peername_exec::interfaces::{self, InterfaceError};
use peername_exec::library::Library;
use peername_exec::notify;
use peername_exec::preload::Preload;
use peername_exec::program::{Mechanism, ProgramError, Reason, examine, search_path};
use peername_exec::table::{Rules, SharedTable, TableError};
use peername_identity::{Network, SocketListing, SourcePolicy};
use peername_server::access::clients::RequiredTlv;
use peername_server::access::network_set::NetworkSet;
use peername_sys::seccomp::NoNewPrivs;

use crate::cmd::proxy;
use crate::cmd::routes::Protocol;
use crate::launcher::{self, LAUNCHER_FAILED, execute};
use clients::ListJudge;

/// Options of `peername exec`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The mechanism that gives the server its clients' addresses
    #[arg(long, value_name = "HOW", default_value = "auto")]
    mode: Mode,
    /// Networks that may send headers: CIDR, address, @FILE, private, loopback or any; may be repeated
    /// [default: private]
    #[arg(short, long, value_name = "NETWORK")]
    trust: Vec<String>,
    #[command(flatten)]
    clients: proxy::clients::Args,
    #[command(flatten)]
    health_checks: proxy::clients::HealthCheckArgs,
    /// A TLV that headers must have: NAME=VALUE, or 0xNN=HEX; values of one name are alternatives; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    require_tlv: Vec<RequiredTlv>,
    #[command(flatten)]
    headers: proxy::header_policy::Args,
    /// Treatment of connections without a header, and of those from untrusted peers
    #[arg(long, value_name = "WHAT", default_value = "require")]
    header: Header,
    /// Client addresses in headers that are refused
    #[arg(long, value_name = "POLICY", default_value = "strict")]
    source_policy: Sources,
    /// Only listeners on these ports, such as 80,443,8000-8010; with --connect: connections to them [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = value::ports)]
    ports: Vec<RangeInclusive<u16>>,
    /// With --mode netns: the address to listen on [default: every address, on --ports]; may be repeated
    #[arg(short, long, value_name = "ADDR", value_parser = value::address)]
    listen: Vec<SocketAddr>,
    /// With --mode netns: the transports to listen on
    #[arg(short, long, default_value = "tcp")]
    protocol: Protocol,
    /// The time from accept to the complete header
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = value::timeout)]
    header_timeout: Duration,
    /// The largest header that is accepted, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(16..=65551))]
    max_header: u32,
    /// Connections that may be open at the same time, rounded up to a power of two
    #[arg(long, value_name = "N", default_value_t = 65536, value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    max_connections: u32,
    /// Show the header's destination as the server's own address (getsockname)
    #[arg(long)]
    dst: bool,
    #[command(flatten)]
    admin: AdminArgs,
    /// CMD is a client: each of its TCP connections begins with a header that names --source
    #[arg(long, requires = "source", conflicts_with_all = OF_SERVERS)]
    connect: bool,
    #[command(flatten)]
    client: connect::Client,
    /// Log the chosen mode and the reason, and each refused connection
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// The server, or client, and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// Choose by the program
    Auto,
    /// Preload a library into the server: for dynamically linked servers
    Preload,
    /// Answer the server's system calls: for any server; sets no_new_privs for ordinary users
    Notify,
    /// Run the server and the proxy in a network namespace: for any server, TCP and UDP; it reaches no other network
    Netns,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Header {
    /// Refuse them
    Require,
    /// Pass them through unchanged
    Optional,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sources {
    /// Refuse special and loopback addresses
    Strict,
    /// Refuse special addresses only
    AllowLocal,
}

/// Executes the program; returns only if that fails: with exit code 125, or [`Usage`] if the options contradict each other.
pub(crate) fn run(given: &Given<Args>) -> anyhow::Result<ExitCode> {
    launcher::exit_code(start(given))
}

fn start(given: &Given<Args>) -> anyhow::Result<ExitCode> {
    let args = &given.options;
    if let Some(source) = args.client.source {
        return Ok(connect::run(args, source));
    }
    args.check_mode()?;
    if let Some(fd) = accepted::find(|port| args.covers(port)) {
        eprintln!(
            "peername: descriptor {fd} is a connection that was accepted before, as by inetd or a systemd socket with \
             Accept=yes: exec reads the headers of connections that the server itself accepts, so the server would take its \
             balancer for its client. Let the server listen, or the socket have Accept=no"
        );
        return Ok(ExitCode::from(LAUNCHER_FAILED));
    }
    let clients = args.client_judge()?;
    let rules = args.rules(clients.is_some())?;
    let mut command = launcher::command(&args.command);
    if args.mode == Mode::Netns {
        netns::start(given)?;
        return Ok(execute(command));
    }
    match args.mechanism(command.get_program()) {
        Ok((Mechanism::Preload, reason)) if reason.rules_out_preloading() => {
            eprintln!(
                "peername: {reason}: --mode preload does not reach it, and it would take its balancer for \
                 its client; use --mode notify or netns"
            );
            return Ok(ExitCode::from(LAUNCHER_FAILED));
        }
        Ok((mechanism, _)) => {
            let found = interfaces::check(mechanism == Mechanism::Preload)?;
            report_missing(&found.missing);
            let rules = Rules {
                listing: found.listing,
                ..rules
            };
            let gaining = match mechanism {
                Mechanism::Preload => preload(given, &rules, clients)?.prepare(&mut command)?,
                Mechanism::Notify => supervise(given, &rules, clients)?,
            };
            report_lost_privileges(gaining);
        }
        Err(error) => {
            eprintln!("peername: {error}");
            return Ok(ExitCode::from(error.exit_code()));
        }
    }
    Ok(execute(command))
}

impl Args {
    fn covers(&self, port: u16) -> bool {
        self.ports.is_empty() || self.ports.iter().any(|ports| ports.contains(&port))
    }

    /// Refuses options that the mode ignores: the user would take them for effective.
    ///
    /// # Errors
    ///
    /// [`Usage`], with the option.
    fn check_mode(&self) -> Result<(), Usage> {
        let text = match self.mode {
            Mode::Netns => return Ok(()),
            _ if !self.listen.is_empty() => {
                "--listen is for --mode netns, which opens the ports itself; --ports chooses among the program's"
            }
            _ if self.protocol.has_udp() => "--protocol: UDP goes by --mode netns only",
            _ => return Ok(()),
        };
        Err(Usage(text.to_owned()))
    }

    /// Which clients may connect; `None` for all. Reads the files of the lists.
    fn client_judge(&self) -> Result<Option<Rc<dyn ClientJudge>>, Usage> {
        let required = self.require_tlv.iter().cloned();
        let health_checks = self.health_checks.map_values(clients::with_absolute_path);
        let lists = self.client_lists();
        let access = lists.access(&health_checks, required.collect())?;
        Ok(ListJudge::for_access(access))
    }

    /// The lists of clients, for a process with another working directory.
    fn client_lists(&self) -> proxy::clients::Args {
        self.clients.map_values(clients::with_absolute_path)
    }

    fn rules(&self, judged_by_waiter: bool) -> Result<Rules, Usage> {
        Ok(Rules {
            judged_by_waiter,
            networks: self.networks()?,
            ports: self.ports.iter().cloned().flatten().collect(),
            header_required: self.header == Header::Require,
            show_destination: self.dst,
            headers: self.headers.policy(),
            sources: match self.source_policy {
                Sources::Strict => SourcePolicy::Strict,
                Sources::AllowLocal => SourcePolicy::AllowLocal,
            },
            max_header: self.max_header as usize,
            listing: SocketListing::default(),
        })
    }

    fn networks(&self) -> Result<Vec<Network>, Usage> {
        if self.trust.is_empty() {
            eprintln!(
                "peername: headers are accepted from private networks (set --trust to choose others)"
            );
        }
        let list =
            NetworkSet::read_required("--trust", &self.trust()).map_err(Usage::from_error)?;
        Ok(list
            .iter()
            .filter_map(|network| Network::new(network.addr(), network.prefix_len()))
            .collect())
    }

    /// The trusted networks as they were written, or the default.
    fn trust(&self) -> Vec<String> {
        match self.trust.as_slice() {
            [] => vec!["private".to_owned()],
            trust => trust.to_vec(),
        }
    }

    fn mechanism(&self, program: &OsStr) -> Result<(Mechanism, Reason), ProgramError> {
        let examined = examine(program, &search_path())?;
        let chosen = match self.mode {
            Mode::Auto => examined.mechanism,
            Mode::Preload => Mechanism::Preload,
            Mode::Notify | Mode::Netns => Mechanism::Notify,
        };
        if self.verbose > 0 {
            eprintln!("peername: mode {chosen}; {}", examined.reason);
        }
        Ok((chosen, examined.reason))
    }

    fn table(&self, rules: &Rules) -> Result<SharedTable, TableError> {
        let wanted = self.max_connections as usize;
        SharedTable::create(wanted.next_power_of_two().max(MIN_SLOTS), rules)
    }
}

/// Starts the supervisor of `--mode notify`. The table's path is removed: only the supervisor uses it, and has it mapped.
fn supervise(
    given: &Given<Args>,
    rules: &Rules,
    clients: Option<Rc<dyn ClientJudge>>,
) -> anyhow::Result<NoNewPrivs> {
    let args = &given.options;
    let table = args.table(rules)?;
    table.remove();
    Ok(notify::start(notify::SupervisorConfig {
        admin: admin::start(given, table.table())?,
        table: table.table(),
        header_timeout: args.header_timeout,
        library: None,
        clients,
        verbose: args.verbose > 0,
    })?)
}

fn preload(
    given: &Given<Args>,
    rules: &Rules,
    clients: Option<Rc<dyn ClientJudge>>,
) -> anyhow::Result<Preload> {
    let args = &given.options;
    let library = Library::Accept.find()?;
    let table = args.table(rules)?;
    let admin = admin::start(given, table.table()).inspect_err(|_| table.remove())?;
    Ok(Preload {
        library,
        table,
        header_timeout: args.header_timeout,
        clients,
        verbose: args.verbose > 0,
        admin,
    })
}

/// Reports no_new_privs, also without `-v`, since it may break set-user-ID programs that the program starts.
fn report_lost_privileges(gaining: NoNewPrivs) {
    if gaining == NoNewPrivs::Set {
        eprintln!(
            "peername: no_new_privs is set: sudo, su, sendmail and other set-user-ID programs gain nothing below \
             (start as root, or with CAP_SYS_ADMIN, to keep them)"
        );
    }
}

/// Reports what is missing for processes that lose the library: with `--mode preload` there may be none.
fn report_missing(missing: &[InterfaceError]) {
    for error in missing {
        eprintln!(
            "peername: {error}. Processes without the library (static, 32-bit, or started by sudo) can't accept"
        );
    }
}

/// Refuses io_uring, because the library does not see operations of a ring.
fn refuse_io_uring(consequence: &str) {
    if let Err(error) = peername_sys::seccomp::deny_io_uring() {
        eprintln!("peername: io_uring can't be refused ({error}): {consequence}");
    }
}

/// The options that do not apply to clients (`--connect`).
const OF_SERVERS: [&str; 18] = [
    "mode",
    "trust",
    "allow_client",
    "deny_client",
    "require_tlv",
    "health_checks_from",
    "strict_header",
    "without_client",
    "header",
    "source_policy",
    "listen",
    "protocol",
    "header_timeout",
    "max_header",
    "max_connections",
    "dst",
    "admin",
    "admin_host",
];
/// The minimum number of slots of a table.
const MIN_SLOTS: usize = 64;

//! The options of `peername exec`.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::rc::Rc;

use peername_daemon::admin::AdminArgs;
use peername_daemon::options::heading;
use peername_daemon::usage::Usage;
use peername_daemon::value;
use peername_exec::client_judge::ClientJudge;
use peername_exec::program::{Mechanism, ProgramError, Reason, examine, search_path};
use peername_exec::table::{Rules, SharedTable, TableError};
use peername_identity::{Network, SocketListing, SourcePolicy};

use super::clients::{self, ListJudge};
use crate::cmd::proxy::header_args::HeaderArgs;
use crate::cmd::routes::Protocol;

/// Options of `peername exec`.
#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLE, next_help_heading = heading::LISTENING)]
pub(crate) struct Args {
    /// The mechanism that gives the server its clients' addresses
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub(super) mode: Mode,
    /// Only listeners on these ports, such as 80,443,8000-8010; with --connect: connections to them [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = value::ports)]
    pub(super) ports: Vec<RangeInclusive<u16>>,
    /// With --mode netns: the address to listen on [default: every address, on --ports]; may be repeated
    #[arg(short, long, value_name = "ADDR", value_parser = value::address)]
    pub(super) listen: Vec<SocketAddr>,
    /// With --mode netns: the transports to listen on
    #[arg(short, long, default_value = "tcp")]
    pub(super) protocol: Protocol,
    #[command(flatten)]
    pub(super) headers: HeaderArgs,
    /// Treatment of connections without a header, and of those from untrusted peers
    #[arg(long, value_name = "WHAT", default_value = "require")]
    pub(super) header: Header,
    /// Client addresses in headers that are refused
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "strict",
        hide_short_help = true
    )]
    pub(super) source_policy: Sources,
    /// Show the header's destination as the server's own address (getsockname)
    #[arg(long)]
    pub(super) dst: bool,
    /// CMD is a client: each of its TCP connections begins with a header that names --source
    #[arg(long, requires = "source", conflicts_with_all = OF_SERVERS, help_heading = heading::SENT_HEADER)]
    pub(super) connect: bool,
    #[command(flatten, next_help_heading = heading::SENT_HEADER)]
    pub(super) client: Client,
    #[command(flatten, next_help_heading = heading::OPERATION)]
    pub(super) admin: AdminArgs,
    /// Log the chosen mode and the reason, and each refused connection
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
    /// Connections that may be open at the same time, rounded up to a power of two
    #[arg(
        long,
        value_name = "N",
        default_value_t = 65536,
        value_parser = clap::value_parser!(u32).range(1..=16_777_216),
        help_heading = heading::TUNING
    )]
    pub(super) max_connections: u32,
    /// The server, or client, and its arguments
    #[arg(last = true, required = true, value_name = "CMD", help_heading = None)]
    pub(super) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Mode {
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
pub(super) enum Header {
    /// Refuse them
    Require,
    /// Pass them through unchanged
    Optional,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Sources {
    /// Refuse special and loopback addresses
    Strict,
    /// Refuse special addresses only
    AllowLocal,
}

/// Options for the contents of the client's headers.
#[derive(Debug, clap::Args)]
pub(super) struct Client {
    /// With --connect: the client address in the headers, such as 192.0.2.1:4711 or `[2001:db8::1]:4711`
    #[arg(long, value_name = "ADDR:PORT", requires = "connect")]
    pub(super) source: Option<SocketAddr>,
    /// With --connect: the version of the headers
    #[arg(
        long,
        value_name = "VERSION",
        default_value = "2",
        requires = "connect"
    )]
    pub(super) proxy_version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Version {
    /// Text
    #[value(name = "1", alias = "v1")]
    V1,
    /// Binary
    #[value(name = "2", alias = "v2")]
    V2,
}

impl Args {
    pub(super) fn covers(&self, port: u16) -> bool {
        self.ports.is_empty() || self.ports.iter().any(|ports| ports.contains(&port))
    }

    /// Refuses options that the mode ignores: the user would take them for effective.
    ///
    /// # Errors
    ///
    /// [`Usage`], with the option.
    pub(super) fn check_mode(&self) -> Result<(), Usage> {
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
    pub(super) fn client_judge(&self) -> Result<Option<Rc<dyn ClientJudge>>, Usage> {
        let access = self.headers_with_absolute_paths().access()?;
        Ok(ListJudge::for_access(access))
    }

    /// The options on headers, for a process with another working directory.
    pub(super) fn headers_with_absolute_paths(&self) -> HeaderArgs {
        self.headers.map_networks(clients::with_absolute_path)
    }

    pub(super) fn rules(&self, judged_by_waiter: bool) -> Result<Rules, Usage> {
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
            max_header: self.headers.max_len(),
            listing: SocketListing::default(),
        })
    }

    pub(super) fn networks(&self) -> Result<Vec<Network>, Usage> {
        let trust = self.headers.trust()?;
        Ok(trust
            .iter()
            .filter_map(|network| Network::new(network.addr(), network.prefix_len()))
            .collect())
    }

    pub(super) fn mechanism(&self, program: &OsStr) -> Result<(Mechanism, Reason), ProgramError> {
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

    pub(super) fn table(&self, rules: &Rules) -> Result<SharedTable, TableError> {
        let wanted = self.max_connections as usize;
        SharedTable::create(wanted.next_power_of_two().max(MIN_SLOTS), rules)
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
const EXAMPLE: &str = "\
Examples: a web server behind a balancer in 192.0.2.0/24; a client that names another address
  peername exec --trust 192.0.2.0/24 --ports 443 -- nginx -g 'daemon off;'
  peername exec --connect --source 198.51.100.7:4711 -- curl https://www.example.com";

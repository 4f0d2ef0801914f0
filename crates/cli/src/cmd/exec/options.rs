//! The options of `peername exec`.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;

use clap::{Args as _, Command, Id};
use peername_daemon::admin::AdminArgs;
use peername_daemon::options::heading;
use peername_daemon::usage::UsageError;
use peername_daemon::value;
use peername_exec::program::{Mechanism, ProgramError, Reason, examine, search_path};
use peername_sys::process::stderr::write_line;

use super::listener_policy_args::ListenerPolicyArgs;
use crate::options::protocol::Protocol;

/// Options of `peername exec`.
#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLE, next_help_heading = heading::LISTENING)]
pub(crate) struct Args {
    /// The mechanism that gives the server its clients' addresses
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub(super) mode: Mode,
    /// With --mode netns: the address to listen on [default: every address, on --ports]; may be repeated
    #[arg(short, long, value_name = "ADDR", value_parser = value::address)]
    pub(super) listen: Vec<SocketAddr>,
    /// With --mode netns: the transports to listen on; UDP takes this mode, or `peername proxy`
    #[arg(short, long, default_value = "tcp")]
    pub(super) protocol: Protocol,
    #[command(flatten)]
    pub(super) listener_policy: ListenerPolicyArgs,
    /// Show the header's destination as the server's own address (getsockname)
    #[arg(long)]
    pub(super) dst: bool,
    /// CMD is a client: each of its TCP connections begins with a header that names --source
    #[arg(long, requires = "source", conflicts_with_all = server_options(), help_heading = heading::SENT_HEADER)]
    pub(super) connect: bool,
    #[command(flatten, next_help_heading = heading::SENT_HEADER)]
    pub(super) sent_header: SentHeaderArgs,
    #[command(flatten, next_help_heading = heading::UNIT)]
    pub(super) unit: UnitArgs,
    #[command(flatten, next_help_heading = heading::OPERATION)]
    pub(super) admin: AdminArgs,
    /// Log the chosen mode and the reason, each refused connection, and each IPv6 client that an IPv4 socket shows as
    /// another address (docs/exec.md)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
    /// The server, or client, and its arguments
    #[arg(
        last = true,
        required_unless_present = "unit",
        conflicts_with = "unit",
        value_name = "CMD",
        help_heading = None
    )]
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
    /// Run the server and the proxy in a network namespace: for any server, TCP and UDP; it reaches no other network, and is
    /// reached on 127.0.0.1 and `::1`
    Netns,
}

/// Options for a service unit whose server is to be started by `peername exec`.
#[derive(Debug, clap::Args)]
pub(super) struct UnitArgs {
    /// Write a drop-in of this service unit of systemd that starts its server by `peername exec` with the other options
    #[arg(long = "unit", id = "unit", value_name = "NAME")]
    pub(super) name: Option<String>,
    /// With --unit: print the drop-in instead of writing it
    #[arg(long, requires = "unit", conflicts_with_all = ["remove", "command"])]
    pub(super) print: bool,
    /// With --unit: say what the drop-in lacks since the unit has changed, and exit with 3 if it lacks something
    #[arg(long, requires = "unit", conflicts_with_all = ["print", "remove", "command"])]
    pub(super) check: bool,
    /// With --unit: remove the drop-in
    #[arg(long, requires = "unit", conflicts_with = "command")]
    pub(super) remove: bool,
}

/// Options for the header that a client sends.
#[derive(Debug, clap::Args)]
pub(super) struct SentHeaderArgs {
    /// With --connect: the client address in the headers, such as 192.0.2.1:4711 or `[2001:db8::1]:4711`
    #[arg(long, value_name = "ADDR:PORT", value_parser = client_address, requires = "connect")]
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
    V1 = 1,
    /// Binary
    #[value(name = "2", alias = "v2")]
    V2 = 2,
}

impl Args {
    /// Refuses `--source` without `--connect`: clap drops this requirement beside an option that conflicts with `--connect`.
    pub(super) fn check_source(&self) -> Result<(), UsageError> {
        match self.sent_header.source {
            Some(source) if !self.connect => Err(UsageError(format!(
                "--source is for --connect, where CMD is a client: peername exec --connect --source {source} -- CMD"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses options that the mode ignores: the user would take them for effective.
    pub(super) fn check_mode(&self) -> Result<(), UsageError> {
        if self.mode == Mode::Netns {
            return Ok(());
        }
        if !self.listen.is_empty() {
            let text = "--listen is for --mode netns, which opens the ports itself; --ports chooses among the program's";
            return Err(UsageError(text.to_owned()));
        }
        if self.protocol.has_udp() {
            return Err(UsageError(
                "--protocol: UDP goes by --mode netns only".to_owned(),
            ));
        }
        Ok(())
    }

    /// Chooses the mechanism by the mode and the program. With `-v`, logs the choice. Not for the mode netns, which has no
    /// mechanism in the server.
    pub(super) fn mechanism(&self, program: &OsStr) -> Result<(Mechanism, Reason), ProgramError> {
        let examined = examine(program, &search_path())?;
        let chosen = match self.mode {
            Mode::Auto => examined.mechanism,
            Mode::Preload => Mechanism::Preload,
            Mode::Notify | Mode::Netns => Mechanism::Notify,
        };
        if self.verbose > 0 {
            write_line(format_args!("peername: mode {chosen}; {}", examined.reason));
        }
        Ok((chosen, examined.reason))
    }
}

fn client_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        value::missing_part(text).unwrap_or_else(|| {
            "use an address and a port: 192.0.2.1:4711 or [2001:db8::1]:4711".to_owned()
        })
    })
}

/// The ids of the options that apply to servers only, so not with `--connect`.
fn server_options() -> Vec<Id> {
    let shared = ListenerPolicyArgs::augment_args(Command::new("server"));
    UnitArgs::augment_args(AdminArgs::augment_args(shared))
        .get_arguments()
        .map(|arg| arg.get_id().clone())
        // A client has it, too: it names the ports of the servers that are sent a header.
        .filter(|id| id != "ports")
        .chain(["mode", "listen", "protocol", "dst"].map(Id::from))
        .collect()
}

const EXAMPLE: &str = "\
Examples: a web server behind a balancer in 192.0.2.0/24; that of a unit; a client that names another address
  peername exec --trust 192.0.2.0/24 --ports 443 -- nginx -g 'daemon off;'
  peername exec --trust 192.0.2.0/24 --ports 443 --unit nginx
  peername exec --connect --source 198.51.100.7:4711 -- curl https://www.example.com";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_is_for_clients_or_is_refused_with_connect() {
        let for_clients = ["ports", "connect", "source", "proxy_version", "verbose"];
        let command = Args::augment_args(Command::new("exec"));
        for arg in command
            .get_arguments()
            .filter(|arg| arg.get_long().is_some())
        {
            let (id, refused) = (arg.get_id(), server_options());
            let is_for_clients = for_clients.contains(&id.as_str());
            assert_ne!(is_for_clients, refused.contains(id), "{id}");
        }
    }
}

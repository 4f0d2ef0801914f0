//! The options of `peername jail`: its own, and those of `peername intercept` that concern requests.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use peername_daemon::logging::{LogArgs, without_go_mmproxy};
use peername_daemon::options::heading;
use peername_daemon::process::confinement::SandboxArgs;
use peername_daemon::usage::{ErrorCollector, UsageError};
use peername_daemon::value::{self, list_file};
use peername_intercept::authz::{AccessRules, HTTP_PORTS, Rule};
use peername_intercept::listener::jail::names::range::NameRanges;
use peername_intercept::policy::tunnelled::TunnelledDestination;
use peername_jail::JailError;
use peername_jail::mediator::allowed::AllowedSockets;
use peername_jail::mediator::refusals::NamedSocket;
use peername_jail::network::DNS_PORT;
use peername_observe::shell::quote;
use peername_sys::fs::text_file::explain_path;

use super::approval::Mode;
use super::file_table::FileTable;
use super::in_jail::InJail;
use crate::cmd::intercept::options::Intercept;
use crate::cmd::intercept::rule_file;

/// Options of `peername jail`, which are also the keys of the `[jail]` table.
#[derive(Clone, Debug, clap::Args)]
#[command(
    mut_arg("no_sandbox", |arg| {
        arg.help("Do not confine the interceptor after its start by Landlock and seccomp (docs/confinement.md)")
    }),
    mut_arg("verbose", |arg| {
        arg.help("-v: print an audit line for each request, unless --log takes them; -vv: also each name that is looked up")
    }),
    mut_arg("log_format", without_go_mmproxy),
    mut_arg("quiet", |arg| {
        arg.help("Log warnings and errors only; without --fail-on-deny, what was denied is not listed at the end either")
    }),
    // `mut_arg` moves the option to the end, and so the heading of the log behind the others.
    mut_arg("log", |arg| arg.help(LOG_HELP))
)]
#[group(skip)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) intercept: InJail<Intercept>,
    /// Allow every request, and write the hosts and ports that the program asks for to FILE, as rules for --allow @FILE; a FILE
    /// that exists is added to
    #[arg(
        long,
        value_name = "FILE",
        value_parser = list_path,
        conflicts_with_all = ["ask", "allow", "deny", "rules", "check"],
        help_heading = heading::RULES
    )]
    pub(super) learn: Option<PathBuf>,
    /// Ask on the terminal about each host and port that no rule of --allow and --deny matches
    #[arg(long, help_heading = heading::RULES)]
    pub(super) ask: bool,
    /// Add the hosts and ports that are answered `always` to FILE, as rules for --allow @FILE
    #[arg(
        long,
        value_name = "FILE",
        value_parser = list_path,
        requires = "ask",
        // clap waives a required option if it conflicts with one that is given.
        conflicts_with_all = ["learn", "check_list"],
        help_heading = heading::RULES,
        hide_short_help = true
    )]
    pub(super) ask_list: Option<PathBuf>,
    /// Deny what is not answered in this time
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        value_parser = value::timeout,
        requires = "ask",
        help_heading = heading::RULES,
        hide_short_help = true
    )]
    pub(super) ask_timeout: Duration,
    /// Exit with 122 if something was denied although the program itself succeeded. The program is then a child process of
    /// peername, which otherwise becomes the program
    #[arg(long, help_heading = heading::RULES)]
    fail_on_deny: bool,
    /// Allow the rules of FILE, and where the program asks for more, print what the list lacks as a diff and exit with 122, as with
    /// --fail-on-deny
    #[arg(
        long,
        value_name = "FILE",
        value_parser = list_path,
        conflicts_with_all = ["learn", "ask", "auto_passthrough"],
        help_heading = heading::RULES
    )]
    pub(super) check_list: Option<PathBuf>,
    /// A further port on which TLS and HTTP are opened, beside 80, 443 and the ports of --allow that are one of HTTP's (8000, 8080,
    /// 8443) or have a path or methods; may be repeated
    #[arg(long = "port", value_name = "N", value_parser = port, help_heading = heading::ORIGINS)]
    pub(super) ports: Vec<u16>,
    /// A destination whose connections are relayed unopened, once the check has allowed a CONNECT to it: github.com:22,
    /// *.example.com:5432, 192.0.2.0/24:22, *:22 for every host, or @FILE for the lines of a list of rules that have a port; may
    /// be repeated
    #[arg(long, value_name = "HOST:PORT|@FILE", help_heading = heading::ORIGINS)]
    allow_tcp: Vec<AllowTcp>,
    /// A directory that the program sees empty, or a file that it can't read (root: sees empty); may be repeated
    #[arg(long, value_name = "PATH", help_heading = heading::CONFINEMENT)]
    pub(super) hide: Vec<PathBuf>,
    /// A Unix socket of this host that the program may connect to, or a directory of such; may be repeated [default: none]
    #[arg(long, value_name = "PATH", help_heading = heading::CONFINEMENT)]
    pub(super) allow_unix: Vec<PathBuf>,
    /// Let the program change mounts in mount namespaces of its own, as bwrap and container engines do; it can uncover hidden files
    /// then, and a jail in this one needs it
    #[arg(long, help_heading = heading::CONFINEMENT)]
    pub(super) allow_mounts: bool,
    #[command(flatten, next_help_heading = heading::CONFINEMENT)]
    pub(super) sandbox: SandboxArgs,
    #[command(flatten)]
    pub(super) logging: LogArgs,
    /// The network of the addresses that names have in the jail, once for IPv4 and once for IPv6 [default: 44.128.0.0/16 and
    /// 3e70:6565:726e:616d::/64]
    #[arg(long = "name-range", value_name = "NETWORK", value_parser = peername_proto::parse_network, help_heading = heading::TUNING)]
    name_ranges: Vec<IpNet>,
    /// The table of the file that some of the options come from.
    #[arg(skip)]
    pub(super) table: Option<FileTable>,
    /// The program and its arguments.
    #[arg(skip)]
    pub(super) command: Vec<OsString>,
}

/// The ports that the jail listens on.
#[derive(Clone, Debug)]
pub(super) struct JailPorts {
    /// Ports on which TLS and HTTP are opened.
    pub(super) opened: BTreeSet<u16>,
    /// Those of them that options open, at every host that is allowed.
    pub(super) of_options: BTreeSet<u16>,
    /// Ports on which connections are relayed, to the hosts that rules name with these ports.
    pub(super) relayed: BTreeSet<u16>,
    /// The destinations of `--allow-tcp`, and those that are learned or asked about.
    pub(super) tunnelled: Vec<TunnelledDestination>,
}

impl JailPorts {
    /// All ports on which the jail listens.
    pub(super) fn all(&self) -> BTreeSet<u16> {
        let tunnelled = self.tunnelled.iter().flat_map(TunnelledDestination::ports);
        tunnelled
            .chain(self.opened.union(&self.relayed).copied())
            .collect()
    }
}

/// Parses the path of a list, which is written without the `@` of a rule.
fn list_path(text: &str) -> Result<PathBuf, String> {
    match list_file(text) {
        Some(path) => Err(format!("write {} alone, without @", quote(path))),
        None => Ok(text.into()),
    }
}

/// A value of `--allow-tcp`.
#[derive(Clone, Debug)]
enum AllowTcp {
    Destination(TunnelledDestination),
    File(PathBuf),
}

impl FromStr for AllowTcp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = list_file(text) {
            return Ok(Self::File(path.to_owned()));
        }
        let parsed: TunnelledDestination = text.parse().map_err(|error| format!("{error}"))?;
        check_port(&parsed)?;
        Ok(Self::Destination(parsed))
    }
}

impl AllowTcp {
    /// Whether a run with the learned list needs this option, too: if each destination is a single host, or has a port in
    /// `opened`, at which rules of a list open TLS and HTTP. At other ports the list has a rule for each host, and a pattern would
    /// open more.
    fn is_needed_with_list(&self, opened: &BTreeSet<u16>) -> bool {
        let destinations = match self {
            Self::Destination(destination) => Ok(vec![destination.clone()]),
            Self::File(path) => read_destinations(path),
        };
        destinations.is_ok_and(|all| {
            all.iter().all(|listed| {
                listed.names_one_host() || listed.ports().all(|port| opened.contains(&port))
            })
        })
    }
}

impl Display for AllowTcp {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Destination(destination) => destination.fmt(f),
            Self::File(path) => write!(f, "@{}", path.display()),
        }
    }
}

impl Args {
    /// Validates options against each other, and the files that they name.
    pub(crate) fn validate(&self) -> Result<(), UsageError> {
        let mut errors = ErrorCollector::default();
        let options = self.intercept();
        errors.note(options.check.refuse_unused_tls_files());
        errors.note(options.check.config());
        errors.note(options.injected_headers());
        errors.note(options.check_log());
        if let Some(rules) = errors.note(options.access_rules()) {
            errors.note(self.jail_ports(rules.as_deref()));
        }
        errors.note(self.name_ranges());
        errors.note(self.allowed_sockets());
        errors.into_result(Some(()))
    }

    /// Checks that this host has the paths of `--hide`. The options may still be right, for another host.
    pub(crate) fn check_hidden_paths(&self) -> Result<(), UsageError> {
        let mut errors = ErrorCollector::default();
        for path in &self.hide {
            if matches!(path.try_exists(), Ok(false)) {
                errors.push(JailError::NothingToHide(path.clone()).to_string());
            }
        }
        errors.into_result(Some(()))
    }

    /// The ports that the jail listens on, and what becomes of connections to them.
    pub(super) fn jail_ports(&self, rules: Option<&AccessRules>) -> Result<JailPorts, UsageError> {
        let opened = self.http_ports(rules);
        let named = rules.map_or_else(BTreeSet::new, AccessRules::relayed_ports);
        if opened.contains(&DNS_PORT) || named.contains(&DNS_PORT) {
            return Err(UsageError(format!(
                "a rule for port {DNS_PORT}, which belongs to the jail's name server; leave it out"
            )));
        }
        Ok(JailPorts {
            of_options: self.http_ports(None),
            relayed: named.difference(&opened).copied().collect(),
            tunnelled: self.tunnelled(&opened)?,
            opened,
        })
    }

    /// The destinations of `--allow-tcp`, and those that are learned or asked about.
    fn tunnelled(&self, opened: &BTreeSet<u16>) -> Result<Vec<TunnelledDestination>, UsageError> {
        let is_unopened = |tunnelled: &TunnelledDestination| {
            !tunnelled.ports().any(|port| opened.contains(&port))
        };
        let mut all = Vec::new();
        for value in &self.allow_tcp {
            match value {
                AllowTcp::Destination(destination) => all.push(destination.clone()),
                AllowTcp::File(path) => {
                    all.extend(read_destinations(path)?.into_iter().filter(is_unopened));
                }
            }
        }
        if self.mode().is_some() {
            for port in RELAYED_PORTS {
                let every_host = format!("*:{port}")
                    .parse()
                    .map_err(UsageError::from_error)?;
                if is_unopened(&every_host) {
                    all.push(every_host);
                }
            }
        }
        Ok(all)
    }

    /// The Unix sockets of this host that the program may connect to.
    pub(super) fn allowed_sockets(&self) -> Result<AllowedSockets, UsageError> {
        AllowedSockets::find(&self.allow_unix).map_err(|(path, error)| {
            let error = explain_path(&path, error);
            UsageError(format!(
                "--allow-unix {}: {error}; `ss -xl` lists the sockets on which servers listen",
                path.display()
            ))
        })
    }

    /// The options of this run that a run with the learned list needs, too, quoted for a shell.
    pub(super) fn kept_options(&self) -> Vec<String> {
        let opened = self.http_ports(None);
        let allow_tcp = self
            .allow_tcp
            .iter()
            .filter(|value| value.is_needed_with_list(&opened))
            .map(ToString::to_string);
        [
            quoted_options("--extra-ca", &self.intercept.0.extra_ca),
            quoted_options("--allow-tcp", allow_tcp),
            self.allow_unix
                .iter()
                .map(|path| format!("--allow-unix {}", socket_value(path)))
                .collect(),
        ]
        .concat()
    }

    /// The networks from which names get their addresses.
    pub(super) fn name_ranges(&self) -> Result<NameRanges, UsageError> {
        NameRanges::new(&self.name_ranges)
            .map_err(|error| UsageError(format!("--name-range {error}")))
    }

    /// The ports on which TLS and HTTP are opened.
    pub(super) fn http_ports(&self, rules: Option<&AccessRules>) -> BTreeSet<u16> {
        let mut ports = BTreeSet::from([80, 443]);
        ports.extend(&self.ports);
        ports.extend(rules.iter().flat_map(|rules| rules.opened_ports()));
        if self.mode().is_some() {
            ports.extend(HTTP_PORTS);
        }
        ports
    }

    /// The options of `intercept`, with what `--check-list`, `--ask` and `--ask-list` mean for the rules.
    pub(super) fn intercept(&self) -> Intercept {
        let mut options = self.intercept.0.clone();
        if let Some(path) = &self.check_list {
            options.rules.add_check_list(path);
        }
        if self.ask {
            options.rules.let_only_deny();
        }
        if let Some(path) = &self.ask_list {
            options.rules.add_ask_list(path);
        }
        options
    }

    /// Whether a denial makes the run fail.
    pub(super) fn fails_on_deny(&self) -> bool {
        self.fail_on_deny || self.check_list.is_some()
    }

    /// What decides where no rule does: `--ask` or `--learn`, which open the usual ports.
    pub(super) fn mode(&self) -> Option<Mode> {
        let learn = self.learn.as_ref().map(|_| Mode::Learn);
        if self.ask { Some(Mode::Ask) } else { learn }
    }

    /// The file of the audit lines.
    pub(super) fn log(&self) -> Option<&Path> {
        self.intercept.0.log.as_deref()
    }

    /// The directory of the authority, if there is one.
    pub(super) fn ca(&self) -> Option<&Path> {
        self.intercept.0.ca.given()
    }
}

/// Reads the destinations of `--allow-tcp @FILE`: those of rules that have a port.
fn read_destinations(path: &Path) -> Result<Vec<TunnelledDestination>, UsageError> {
    let name = format!("--allow-tcp @{}", path.display());
    let parse = |entry: &str| {
        let rule = Rule::allow(entry).map_err(|error| format!("{error}"))?;
        let destination = TunnelledDestination::from_rule(rule);
        destination.as_ref().map_or(Ok(()), check_port)?;
        Ok::<_, String>(destination)
    };
    let destinations = rule_file::read_allowed(&name, path, parse)?;
    Ok(destinations.into_iter().flatten().collect())
}

/// Refuses the port of the jail's name server.
fn check_port(destination: &TunnelledDestination) -> Result<(), String> {
    match destination.ports().any(|port| port == DNS_PORT) {
        true => Err(IS_NAME_SERVERS.to_owned()),
        false => Ok(()),
    }
}

fn port(text: &str) -> Result<u16, &'static str> {
    match text.parse() {
        Ok(DNS_PORT) => Err(IS_NAME_SERVERS),
        Ok(port) if port != 0 => Ok(port),
        _ => Err("a port is a number from 1 to 65535"),
    }
}

const LOG_HELP: &str =
    "Write the audit lines to this file [default: to standard error with -v, else nowhere]";
const IS_NAME_SERVERS: &str = "port 53 belongs to the jail's name server";
/// Ports that are relayed with `--learn` and `--ask`: SSH, rsync, MySQL, PostgreSQL, Redis, git, MongoDB.
pub(super) const RELAYED_PORTS: [u16; 7] = [22, 873, 3306, 5432, 6379, 9418, 27017];

/// The value of `--allow-unix` for a shell: a variable if one names the socket, else the path.
fn socket_value(path: &Path) -> String {
    NamedSocket::option_value_of(path).unwrap_or_else(|| quote(path).into_owned())
}

/// The option with each of these values, quoted for a shell.
fn quoted_options<V: AsRef<OsStr>>(
    option: &str,
    values: impl IntoIterator<Item = V>,
) -> Vec<String> {
    values
        .into_iter()
        .map(|value| format!("{option} {}", quote(&value)))
        .collect()
}

//! The options of `peername intercept`, which are also the keys of the `[intercept]` table, and the configuration that they
//! make.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::NonEmptyStringValueParser;
use peername_daemon::listeners::resolve_listeners;
use peername_daemon::logging::{LogFile, without_go_mmproxy};
use peername_daemon::options::{Given, heading, not_with_file};
use peername_daemon::process::Process;
use peername_daemon::reload::ConfigSource;
use peername_daemon::usage::{ErrorCollector, UsageError};
use peername_daemon::value::{self, Listen, list_file};
use peername_intercept::authz::{AccessRules, InjectedHeaders, Injection};
use peername_intercept::otlp::CollectorUrl;
use peername_intercept::policy::access::{Access, Users};
use peername_intercept::policy::destination::Destinations;
use peername_intercept::policy::host_pattern::HostPattern;
use peername_intercept::policy::host_timeouts::{HostTimeout, HostTimeouts};
use peername_intercept::policy::passthrough::Passthrough;
use peername_intercept::policy::pinned::PinnedClients;
use peername_intercept::state::ClientConnectionConfig;
use peername_intercept::upstream::config::UpstreamConfig;
use peername_intercept::upstream::upstream_proxy::UpstreamProxy;
use peername_server::destination_list::{AllowedDestination, DestinationList};
use peername_sys::fs::{check_writable, explain_append};

use super::check_args::CheckArgs;
use super::rule_args::RuleArgs;
use crate::cmd::ca::ca_dir::CaDir;
use crate::options::clients::read_networks;

/// Options of `peername intercept`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    before_help = EXAMPLE,
    mut_args(not_with_file::<Intercept>()),
    // The help texts of `Process`, which is also used for files, are about all commands.
    mut_arg("workers", |arg| arg.help("Event loops, each with sockets of its own [default: one per core]")),
    mut_arg("verbose", |arg| arg.help("-v: log a line for each connection that ends before it has a request, too; -vv: more")),
    mut_arg("log_format", without_go_mmproxy),
    mut_arg("config", |arg| arg.help(CONFIG_HELP))
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) intercept: Given<Intercept>,
    #[command(flatten)]
    pub(super) source: ConfigSource,
    #[command(flatten)]
    pub(super) process: Given<Process>,
}

/// The options of the proxy itself.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = heading::LISTENING)]
#[group(skip)]
pub(crate) struct Intercept {
    /// Listen here for clients that are configured with the proxy; may be repeated [default: 127.0.0.1:8080, unless
    /// --transparent is given]
    #[arg(short, long, value_name = "ADDR")]
    listen: Vec<Listen>,
    /// Listen here for connections that a REDIRECT or TPROXY rule redirects; may be repeated
    #[arg(long, value_name = "ADDR")]
    transparent: Vec<Listen>,
    /// Clients that may use the proxy: CIDR, address, @FILE, private, loopback or any; may be repeated [default: any on
    /// loopback; elsewhere this or --proxy-auth is required]
    #[arg(long, value_name = "NETWORK")]
    allow_client: Vec<String>,
    /// Require name and password (Proxy-Authorization: Basic): a file of NAME:HASH lines, as `htpasswd -B` writes them
    #[arg(long, value_name = "FILE")]
    proxy_auth: Option<PathBuf>,
    /// Peers that begin connections with a PROXY header that names the client: CIDR, address, @FILE, private,
    /// loopback or any; may be repeated
    #[arg(long, value_name = "NETWORK", hide_short_help = true)]
    accept_proxy: Vec<String>,
    #[command(flatten, next_help_heading = heading::RULES)]
    pub(super) rules: RuleArgs,
    /// A secret that is added to allowed requests to this host, the value of HEADER from FILE: `api.example.com=Authorization@FILE`,
    /// over TLS unless it begins with `http://`; may be repeated
    #[arg(long, value_name = "HOST=HEADER@FILE")]
    inject: Vec<Injection>,
    /// A line for the answers to refused requests, such as where to ask for a rule: `Ask net@example.com`
    #[arg(
        long,
        value_name = "TEXT",
        value_parser = NonEmptyStringValueParser::new(),
        hide_short_help = true
    )]
    pub(super) contact: Option<String>,
    #[command(flatten, next_help_heading = heading::CHECK)]
    pub(super) check: CheckArgs,
    #[command(flatten, next_help_heading = heading::TLS)]
    pub(crate) ca: CaDir,
    /// Authorities (PEM) to trust for origins, beside this host's; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) extra_ca: Vec<PathBuf>,
    /// A host with TLS that is relayed unopened: example.com, *.example.com or a network; may be repeated
    #[arg(long, value_name = "HOST")]
    passthrough: Vec<HostPattern>,
    /// Relay a host's TLS unopened, for a day, for a client that has refused the proxy's certificate three times
    #[arg(long, conflicts_with_all = ["check", "allow", "deny", "rules"], hide_short_help = true)]
    auto_passthrough: bool,
    /// A destination beyond ports 80 and 443 of public addresses: CIDR[:PORT[-PORT]]; may be repeated
    #[arg(long, value_name = "WHERE", help_heading = heading::ORIGINS)]
    allow_destination: Vec<AllowedDestination>,
    /// Upstream proxy for all connections to origins: `http://[USER:PASSWORD@]HOST:PORT`
    #[arg(long, value_name = "URL", help_heading = heading::ORIGINS)]
    pub(super) upstream_proxy: Option<UpstreamProxy>,
    /// Begin each connection to an origin with a PROXY header that names the client
    #[arg(
        long,
        value_name = "VERSION",
        conflicts_with = "upstream_proxy",
        help_heading = heading::ORIGINS,
        hide_short_help = true
    )]
    send_proxy: Option<SendProxy>,
    #[command(flatten)]
    timeouts: TimeoutArgs,
    /// Send a span for each request to this OpenTelemetry collector, by OTLP over HTTP: `http://HOST:4318`
    #[arg(long, value_name = "URL", help_heading = heading::OPERATION, hide_short_help = true)]
    pub(super) otlp: Option<CollectorUrl>,
    /// Write the audit lines to this file instead of the log, and deny requests while it can't be written; SIGHUP opens it again
    #[arg(long, value_name = "FILE", help_heading = heading::LOG)]
    pub(super) log: Option<PathBuf>,
    /// New certificates that a client, an IPv4 address or an IPv6 /64, may cause in a second; beyond that it waits, 4 s at
    /// most, and is then refused (429)
    #[arg(long, value_name = "N", default_value = "1000", value_parser = value::number(1, 1_000_000), help_heading = heading::TUNING)]
    certificates_per_client: usize,
}

/// The timeouts of requests; their defaults suit most.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = heading::TIMEOUTS)]
#[group(skip)]
struct TimeoutArgs {
    /// For resolving a name; and again for connecting to the origin; and again for the TLS handshake
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "10s",
        value_parser = value::timeout,
        hide_short_help = true
    )]
    connect_timeout: Duration,
    /// From the end of a request to the head of its response
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "5m",
        value_parser = value::timeout,
        hide_short_help = true
    )]
    answer_timeout: Duration,
    /// The same for a host that takes longer, or less: example.com, *.example.com or a network; may be repeated, the first one
    /// applies
    #[arg(long, value_name = "HOST=DURATION", value_parser = host_timeout, hide_short_help = true)]
    host_answer_timeout: Vec<HostTimeout>,
    /// Close connections on both sides that have no request for so long; a first request, and a head that has begun, have 10 s.
    /// Abort exchanges whose client sends nothing of its request, or reads nothing of the response, for so long
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "60s",
        value_parser = value::timeout,
        hide_short_help = true
    )]
    idle_timeout: Duration,
    /// Abort responses of a host that sends no byte for so long: example.com, *.example.com or a network; may be repeated, the
    /// first one applies [default: a response that has begun may be silent]
    #[arg(long, value_name = "HOST=DURATION", value_parser = host_timeout, hide_short_help = true)]
    host_idle_timeout: Vec<HostTimeout>,
    /// Close tunnels and WebSockets without a byte in either direction for so long, and abort gRPC and server-sent events whose
    /// client reads nothing for so long
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1h",
        value_parser = value::timeout,
        hide_short_help = true
    )]
    tunnel_timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SendProxy {
    V2,
}

impl Intercept {
    /// The addresses of explicit listeners; resolves names now.
    pub(super) fn explicit(&self) -> Result<Vec<SocketAddr>, UsageError> {
        if self.listens_by_default() {
            return Ok(vec![DEFAULT_LISTEN]);
        }
        resolve_listeners("--listen", &self.listen)
    }

    /// Whether no listener is given, so that it listens on [`DEFAULT_LISTEN`].
    pub(super) fn listens_by_default(&self) -> bool {
        self.listen.is_empty() && self.transparent.is_empty()
    }

    /// The addresses of transparent listeners; resolves names now.
    pub(super) fn transparent(&self) -> Result<Vec<SocketAddr>, UsageError> {
        resolve_listeners("--transparent", &self.transparent)
    }

    /// The files that the options name, but for those of the authority.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        let paths = self.proxy_auth.iter().chain(&self.extra_ca);
        self.allow_client
            .iter()
            .chain(&self.accept_proxy)
            .filter_map(|word| list_file(word))
            .chain(paths.map(PathBuf::as_path))
            .chain(self.rules.files())
            .chain(self.check.tls.files())
            .chain(self.inject.iter().map(Injection::file))
    }

    /// Opens the file of `--log`, if there is one.
    pub(super) fn open_log(&self) -> Result<Option<File>, UsageError> {
        let Some(path) = &self.log else {
            return Ok(None);
        };
        let file = LogFile::open_file(path).map_err(|error| explain_log(path, error))?;
        Ok(Some(file))
    }

    /// Checks that the file of `--log` can be written, or made in its directory; leaves a missing file to [`Self::open_log`].
    pub(super) fn check_log(&self) -> Result<(), UsageError> {
        match &self.log {
            Some(path) => check_writable(path).map_err(|error| explain_log(path, error)),
            None => Ok(()),
        }
    }

    /// The file of `--log` if a rotation can replace it: not a device or a pipe.
    pub(super) fn rotated_log(&self) -> Option<&PathBuf> {
        self.log.as_ref().filter(|path| path.is_file())
    }

    pub(super) fn allowed_destinations(&self) -> DestinationList {
        self.allow_destination.iter().cloned().collect()
    }

    pub(super) fn client_connections(&self) -> ClientConnectionConfig {
        ClientConnectionConfig {
            passthrough: Passthrough::new(self.passthrough.clone()),
            pinned: self.auto_passthrough.then(PinnedClients::default),
            opening_timeout: OPENING_TIMEOUT,
            idle_timeout: self.timeouts.idle_timeout,
            response_idle_timeouts: HostTimeouts::new(self.timeouts.host_idle_timeout.clone()),
            tunnel_timeout: self.timeouts.tunnel_timeout,
            contact: self.contact.clone(),
        }
    }

    /// The files with secrets: those of `--inject`, and the key of `--check-key`.
    pub(super) fn secret_files(&self) -> impl Iterator<Item = &Path> {
        self.injected_files().chain(self.check.tls.key_file())
    }

    /// The file of `--proxy-auth`, if every user of this host may read it.
    pub(super) fn exposed_users(&self) -> Option<&Path> {
        let file = self.proxy_auth.as_deref()?;
        let is_exposed = file.metadata().ok()?.mode() & 0o004 != 0;
        is_exposed.then_some(file)
    }

    /// The files of `--inject`.
    pub(super) fn injected_files(&self) -> impl Iterator<Item = &Path> {
        self.inject.iter().map(Injection::file)
    }

    /// The access lists; `None` if there are none.
    pub(super) fn access_rules(&self) -> Result<Option<Arc<AccessRules>>, UsageError> {
        Ok(self.rules.rules()?.map(Arc::new))
    }

    /// Reads the secrets that are added to requests.
    pub(super) fn injected_headers(&self) -> Result<InjectedHeaders, UsageError> {
        InjectedHeaders::read(&self.inject).map_err(UsageError::from_error)
    }

    /// The clients that may use the proxy. A listener that other hosts reach needs an explicit list, or is an open proxy.
    pub(super) fn access(&self) -> Result<Access, UsageError> {
        let read_optional = |option, values: &[String]| match values {
            [] => Ok(None),
            values => read_networks(option, values).map(Some),
        };
        let mut errors = ErrorCollector::default();
        let accept_proxy = errors.note(read_optional("--accept-proxy", &self.accept_proxy));
        let clients = errors.note(read_optional("--allow-client", &self.allow_client));
        let users = self.proxy_auth.as_deref().map(Users::read).transpose();
        let users = errors.note(users.map_err(UsageError::from_error));
        let access = errors.build(|| {
            Some(Access {
                clients: clients?,
                accept_proxy: accept_proxy?,
                users: users?,
            })
        })?;
        let explicit = self.explicit()?;
        match explicit.iter().find(|addr| !addr.ip().is_loopback()) {
            Some(addr) if access.clients.is_none() && access.users.is_none() => {
                Err(UsageError(format!(
                    "--listen {addr} would be an open proxy: restrict it by --allow-client CIDR (private, any) or \
                     --proxy-auth FILE"
                )))
            }
            _ => Ok(access),
        }
    }

    pub(super) fn certificates_per_client(&self) -> u32 {
        u32::try_from(self.certificates_per_client).unwrap_or(u32::MAX)
    }

    pub(super) fn upstream(
        &self,
        max_connections: usize,
        destinations: Destinations,
    ) -> UpstreamConfig {
        UpstreamConfig {
            destinations,
            extra_ca: self.extra_ca.clone(),
            proxy: self.upstream_proxy.clone(),
            send_proxy: self.send_proxy.is_some(),
            connect_timeout: self.timeouts.connect_timeout,
            handshake_timeout: self.timeouts.connect_timeout,
            response_timeout: self.timeouts.answer_timeout,
            response_timeouts: HostTimeouts::new(self.timeouts.host_answer_timeout.clone()),
            idle_timeout: self.timeouts.idle_timeout,
            max_connections,
        }
    }
}

fn explain_log(path: &Path, error: io::Error) -> UsageError {
    let error = explain_append(path, error);
    UsageError(format!("--log {}: {error}", path.display()))
}

/// Parses `HOST=DURATION`.
fn host_timeout(text: &str) -> Result<HostTimeout, String> {
    let (hosts, limit) = text
        .split_once('=')
        .ok_or("use HOST=DURATION: example.com=2m, *.example.com=1h")?;
    Ok(HostTimeout {
        hosts: hosts.parse().map_err(|error| format!("{error}"))?,
        limit: value::timeout(limit)?,
    })
}

/// The listener where none is given.
pub(crate) const DEFAULT_LISTEN: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// Timeout of a ClientHello or the head of a request: long enough for a phone with a bad connection.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);
const CONFIG_HELP: &str = "Read this file (docs/config.md); rules, --check, --log, --otlp and all options of listeners, TLS and \
    origins are keys of its [intercept] table then, and can't be given beside it. SIGHUP reads it again";
const EXAMPLE: &str = "\
Example: clients whose proxy is 127.0.0.1:8080 and who trust the authority reach these hosts alone
  peername ca init
  peername intercept --allow example.com --allow 'GET,HEAD *.example.org'";

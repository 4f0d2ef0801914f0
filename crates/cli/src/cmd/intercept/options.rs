//! The options of `peername intercept`, which are also the keys of the `[intercept]` table, and the configuration that they
//! make.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use http::HeaderName;
use peername_intercept::authz::{CheckConfig, FailureMode, SentHeaders, Service};
use peername_intercept::policy::access::{Access, Users};
use peername_intercept::policy::passthrough::{HostPattern, Passthrough};
use peername_intercept::policy::pinned::PinnedClients;
use peername_intercept::state::Rules;
use peername_intercept::upstream::config::UpstreamConfig;
use peername_intercept::upstream::upstream_proxy::UpstreamProxy;
use peername_server::access::trust_list::TrustList;
use peername_server::destination_list::AllowedDestination;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::redacted::Redacted;
use crate::cmd::ca::ca_dir::CaDir;
use crate::cmd::proxy::clients::list_errors;
use crate::config_file::table_options::{self, NotWithFile};
use crate::listeners::resolve_listeners;
use crate::process::Process;
use crate::reload::Source;
use crate::usage::{Usage, UsageErrors};
use crate::value::{AsWritten, Listen, Number, Time, Timeout, list_file};

/// Options of `peername intercept`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) source: Source,
    #[command(flatten)]
    pub(super) process: Process,
    #[command(flatten)]
    pub(super) intercept: NotWithFile<Intercept>,
}

/// The options of the proxy itself.
#[derive(Clone, Debug, clap::Args, Deserialize, Serialize, JsonSchema)]
#[group(skip)]
#[serde(default, rename_all = "kebab-case")]
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
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) ca: CaDir,
    /// The service that checks requests: `grpc://HOST:PORT` (Envoy's ext_authz), `http://HOST[:PORT]/PATH` (forwardAuth)
    /// or `opa+http://HOST:PORT/v1/data/RULE` [default: none, all are allowed]
    #[arg(long, value_name = "URL")]
    check: Option<AsWritten<Service>>,
    /// Deadline of a check, from its request to the end of its response
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "500ms",
        requires = "check"
    )]
    check_timeout: Timeout,
    /// What happens to a request when its check fails
    #[arg(long, value_name = "WHAT", default_value = "deny", requires = "check")]
    on_check_failure: Failure,
    /// How long a response is cached for equal requests [default: no cache]
    #[arg(long, value_name = "DURATION", requires = "check")]
    check_cache: Option<Time>,
    /// A request header that is sent to the service, and no other; may be repeated [default: all but
    /// Authorization, Proxy-Authorization and Cookie]
    #[arg(long, value_name = "HEADER", requires = "check")]
    check_header: Vec<AsWritten<HeaderName>>,
    /// Bytes of a request's body that are sent to a grpc or opa+http service; the proxy waits for them before it asks
    /// [default: none]
    #[arg(long, value_name = "OCTETS", requires = "check")]
    check_body: Option<Number<1, 1_048_576>>,
    /// A header that a request takes from a forwardAuth service's response; may be repeated
    #[arg(long, value_name = "HEADER", requires = "check")]
    check_take: Vec<AsWritten<HeaderName>>,
    /// Checks in flight at a time; others wait, within --check-timeout
    #[arg(long, value_name = "N", default_value = "256", requires = "check")]
    check_concurrency: Number<1, 65_536>,
    /// A destination beyond ports 80 and 443 of public addresses: CIDR[:PORT[-PORT]]; may be repeated
    #[arg(long, value_name = "WHERE")]
    allow_destination: Vec<AsWritten<AllowedDestination>>,
    /// A host with TLS that is relayed unopened: example.com, *.example.com or a network; may be repeated
    #[arg(long, value_name = "HOST")]
    passthrough: Vec<AsWritten<HostPattern>>,
    /// Relay a host's TLS unopened, for a day, for a client that has refused the proxy's certificate three times
    #[arg(long, conflicts_with = "check")]
    auto_passthrough: bool,
    /// Peers that begin connections with a PROXY header that names the client: CIDR, address, @FILE, private,
    /// loopback or any; may be repeated
    #[arg(long, value_name = "NETWORK")]
    accept_proxy: Vec<String>,
    /// Begin each connection to an origin with a PROXY header that names the client
    #[arg(long, value_name = "VERSION", conflicts_with = "upstream_proxy")]
    send_proxy: Option<SendProxy>,
    /// Upstream proxy for all connections to origins: `http://[USER:PASSWORD@]HOST:PORT`
    #[arg(long, value_name = "URL")]
    upstream_proxy: Option<Redacted<UpstreamProxy>>,
    /// Authorities (PEM) to trust for origins, beside this host's; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(super) extra_ca: Vec<PathBuf>,
    /// For resolving a name; and again for connecting to the origin; and again for the TLS handshake
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    connect_timeout: Timeout,
    /// From the end of a request to the head of its response
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    answer_timeout: Timeout,
    /// Close connections without a request for so long, on both sides, and abort requests and responses without a byte in
    /// either direction for so long
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    idle_timeout: Timeout,
    /// The same for exchanges that may be silent: tunnels, WebSocket, gRPC, server-sent events
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    tunnel_timeout: Timeout,
    /// New certificates that a client, an IPv4 address or an IPv6 /64, may cause in a second; beyond that it waits, 4 s at
    /// most, and is then refused (429)
    #[arg(long, value_name = "N", default_value = "1000")]
    certificates_per_client: Number<1, 1_000_000>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
enum Failure {
    Deny,
    Allow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
enum SendProxy {
    V2,
}

/// A key that is absent has the default of the command line.
impl Default for Intercept {
    fn default() -> Self {
        table_options::option_defaults()
    }
}

impl Intercept {
    /// The addresses of explicit listeners; resolves names now.
    ///
    /// # Errors
    ///
    /// A name does not resolve.
    pub(super) fn explicit(&self) -> Result<Vec<SocketAddr>, Usage> {
        match (self.listen.as_slice(), self.transparent.as_slice()) {
            ([], []) => Ok(vec![SocketAddr::from(([127, 0, 0, 1], 8080))]),
            (listen, _) => resolve_listeners("--listen", listen),
        }
    }

    /// The addresses of transparent listeners; resolves names now.
    ///
    /// # Errors
    ///
    /// A name does not resolve.
    pub(super) fn transparent(&self) -> Result<Vec<SocketAddr>, Usage> {
        resolve_listeners("--transparent", &self.transparent)
    }

    /// The files that the options name, but for those of the authority.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        let words = self.allow_client.iter().chain(&self.accept_proxy);
        let lists = words.filter_map(|word| list_file(word));
        let paths = self.proxy_auth.iter().chain(&self.extra_ca);
        lists.chain(paths.map(PathBuf::as_path))
    }

    /// Options that the command line refuses to combine, for the file.
    ///
    /// # Errors
    ///
    /// All contradictions.
    pub(super) fn contradictions(&self) -> Result<(), Usage> {
        let mut errors = UsageErrors::default();
        let for_checks = [
            (self.fails_open(), "--on-check-failure"),
            (self.check_cache.is_some(), "--check-cache"),
            (!self.check_header.is_empty(), "--check-header"),
            (self.check_body.is_some(), "--check-body"),
            (!self.check_take.is_empty(), "--check-take"),
        ];
        if self.check.is_none() {
            for (_, option) in for_checks.iter().filter(|(given, _)| *given) {
                errors.push(format!("{option} has no effect without --check"));
            }
        } else if self.auto_passthrough {
            errors.push("--auto-passthrough can't be combined with --check");
        }
        if self.send_proxy.is_some() && self.upstream_proxy.is_some() {
            errors.push("--send-proxy can't be combined with --upstream-proxy");
        }
        errors.into_result(Some(()))
    }

    pub(super) fn allowed_destinations(&self) -> Vec<AllowedDestination> {
        values(&self.allow_destination)
    }

    pub(super) fn rules(&self) -> Rules {
        Rules {
            passthrough: Passthrough::new(values(&self.passthrough)),
            pinned: self.auto_passthrough.then(PinnedClients::default),
            opening_timeout: OPENING_TIMEOUT,
            idle_timeout: self.idle_timeout.0,
            tunnel_timeout: self.tunnel_timeout.0,
        }
    }

    /// The clients that may use the proxy. A listener that other hosts reach needs an explicit list, or is an open proxy.
    ///
    /// # Errors
    ///
    /// A list or a file is not valid, or the proxy would be an open one.
    pub(super) fn access(&self) -> Result<Access, Usage> {
        let list = |option, words: &[String]| match words {
            [] => Ok(None),
            words => TrustList::parse_option(option, words)
                .map(Some)
                .map_err(|first| {
                    let by_itself = words.iter();
                    let by_itself = by_itself.map(|word| TrustList::parse_option(option, &[word]));
                    list_errors(by_itself, first)
                }),
        };
        let mut errors = UsageErrors::default();
        let accept_proxy = errors.note(list("--accept-proxy", &self.accept_proxy));
        let clients = errors.note(list("--allow-client", &self.allow_client));
        let users = self.proxy_auth.as_deref().map(Users::read);
        let users = errors.note(users.transpose().map_err(Usage::from_error));
        let lists = accept_proxy.zip(clients).zip(users);
        let ((accept_proxy, clients), users) = errors.into_result(lists)?;
        let explicit = self.explicit()?;
        let public = explicit.iter().find(|addr| !addr.ip().is_loopback());
        match public {
            Some(addr) if clients.is_none() && users.is_none() => Err(Usage(format!(
                "--listen {addr} would be an open proxy: restrict it by --allow-client CIDR (private, any) or \
                 --proxy-auth FILE"
            ))),
            _ => Ok(Access {
                clients,
                accept_proxy,
                users,
            }),
        }
    }

    pub(super) fn certificates_per_client(&self) -> u32 {
        u32::try_from(self.certificates_per_client.get()).unwrap_or(u32::MAX)
    }

    pub(super) fn upstream(&self, max_connections: usize) -> UpstreamConfig {
        UpstreamConfig {
            extra_ca: self.extra_ca.clone(),
            proxy: self.upstream_proxy.as_ref().map(|proxy| proxy.0.clone()),
            send_proxy: self.send_proxy.is_some(),
            connect_timeout: self.connect_timeout.0,
            handshake_timeout: self.connect_timeout.0,
            response_timeout: self.answer_timeout.0,
            idle_timeout: self.idle_timeout.0,
            max_connections,
        }
    }

    /// Whether requests are let through when the check fails.
    pub(super) fn fails_open(&self) -> bool {
        matches!(self.on_check_failure, Failure::Allow)
    }

    /// The configuration of the check service, if there is one.
    pub(super) fn check(&self) -> Option<CheckConfig> {
        let service = self.check.as_ref()?;
        Some(CheckConfig {
            timeout: self.check_timeout.0,
            on_failure: match self.on_check_failure {
                Failure::Deny => FailureMode::Deny,
                Failure::Allow => FailureMode::Allow,
            },
            cache: self.check_cache.map(|time| time.0),
            concurrency: NonZeroUsize::new(self.check_concurrency.get())
                .unwrap_or(NonZeroUsize::MIN),
            sent: match self.check_header.as_slice() {
                [] => SentHeaders::default(),
                names => SentHeaders::Only(values(names)),
            },
            body: self.check_body.map_or(0, Number::get),
            take: values(&self.check_take),
            ..CheckConfig::new(service.value.clone())
        })
    }
}

fn values<T: Clone>(all: &[AsWritten<T>]) -> Vec<T> {
    all.iter().map(|one| one.value.clone()).collect()
}

/// Long enough for a phone with a bad connection.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);

//! The options of `peername intercept`, and the configuration that they make.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use http::HeaderName;
use peername_intercept::authz::{CheckConfig, CheckService, FailureMode, SentHeaders, Service};
use peername_intercept::policy::access::{Access, Users};
use peername_intercept::policy::passthrough::{HostPattern, Passthrough};
use peername_intercept::policy::pinned::PinnedClients;
use peername_intercept::state::Rules;
use peername_intercept::upstream::config::UpstreamConfig;
use peername_intercept::upstream::upstream_proxy::UpstreamProxy;
use peername_server::destination_list::AllowedDestination;
use peername_server::trust_list::TrustList;

use crate::admin::AdminArgs;
use crate::cmd::ca::ca_dir::CaDir;
use crate::lifecycle::default_workers;
use crate::usage::Usage;
use crate::value::{self, Number, Time, Timeout};
use crate::{confinement, logging};

/// Options of `peername intercept`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Listen here for clients that are configured with the proxy; may be repeated [default: 127.0.0.1:8080, unless
    /// --transparent is given]
    #[arg(short, long, value_name = "ADDR", value_parser = value::address)]
    listen: Vec<SocketAddr>,
    /// Listen here for connections that a REDIRECT or TPROXY rule redirects; may be repeated
    #[arg(long, value_name = "ADDR", value_parser = value::address)]
    transparent: Vec<SocketAddr>,
    /// Clients that may use the proxy: CIDR, address, @FILE, private, loopback or any; may be repeated [default: any on
    /// loopback; elsewhere this or --proxy-auth is required]
    #[arg(long, value_name = "NETWORK")]
    allow_client: Vec<String>,
    /// Require name and password (Proxy-Authorization: Basic): a file of NAME:HASH lines, as `htpasswd -B` writes them
    #[arg(long, value_name = "FILE")]
    proxy_auth: Option<PathBuf>,
    #[command(flatten)]
    pub(super) ca: CaDir,
    /// The service that checks requests: `grpc://HOST:PORT` (Envoy's ext_authz), `http://HOST[:PORT]/PATH` (forwardAuth)
    /// or `opa+http://HOST:PORT/v1/data/RULE` [default: none, all are allowed]
    #[arg(long, value_name = "URL")]
    check: Option<Service>,
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
    check_header: Vec<HeaderName>,
    /// Bytes of a request's body that are sent to a grpc or opa+http service; the proxy waits for them before it asks
    /// [default: none]
    #[arg(long, value_name = "OCTETS", requires = "check")]
    check_body: Option<Number<1, 1_048_576>>,
    /// A header that a request takes from a forwardAuth service's response; may be repeated
    #[arg(long, value_name = "HEADER", requires = "check")]
    check_take: Vec<HeaderName>,
    /// Checks in flight at a time; others wait, within --check-timeout
    #[arg(long, value_name = "N", default_value = "256", requires = "check")]
    check_concurrency: Number<1, 65_536>,
    /// A destination beyond ports 80 and 443 of public addresses: CIDR[:PORT[-PORT]]; may be repeated
    #[arg(long, value_name = "WHERE")]
    pub(super) allow_destination: Vec<AllowedDestination>,
    /// A host with TLS that is relayed unopened: example.com, *.example.com or a network; may be repeated
    #[arg(long, value_name = "HOST")]
    passthrough: Vec<HostPattern>,
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
    upstream_proxy: Option<UpstreamProxy>,
    /// Authorities (PEM) to trust for origins, beside this host's; may be repeated
    #[arg(long, value_name = "FILE")]
    extra_ca: Vec<PathBuf>,
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
    #[command(flatten)]
    pub(super) admin: AdminArgs,
    /// Worker threads [default: one per core]
    #[arg(long, value_name = "N")]
    workers: Option<Number<1, 1024>>,
    /// The time for which open connections are drained after SIGTERM; a second SIGTERM closes them
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    drain: Time,
    #[command(flatten)]
    pub(super) sandbox: confinement::Args,
    #[command(flatten)]
    pub(super) logging: logging::Args,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Failure {
    Deny,
    Allow,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SendProxy {
    V2,
}

impl Args {
    /// The addresses of explicit listeners, then of transparent ones.
    pub(super) fn listen_addresses(&self) -> (Vec<SocketAddr>, &[SocketAddr]) {
        let listen = match (self.listen.as_slice(), self.transparent.as_slice()) {
            ([], []) => vec![SocketAddr::from(([127, 0, 0, 1], 8080))],
            (listen, _) => listen.to_vec(),
        };
        (listen, &self.transparent)
    }

    pub(super) fn workers(&self) -> usize {
        self.workers.map_or_else(default_workers, Number::get)
    }

    pub(super) fn drain(&self) -> Duration {
        self.drain.0
    }

    pub(super) fn rules(&self) -> Rules {
        Rules {
            passthrough: Passthrough::new(self.passthrough.clone()),
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
                .map_err(Usage::from_error),
        };
        let accept_proxy = list("--accept-proxy", &self.accept_proxy)?;
        let clients = list("--allow-client", &self.allow_client)?;
        let users = self.proxy_auth.as_deref().map(Users::read);
        let users = users.transpose().map_err(Usage::from_error)?;
        let (explicit, _) = self.listen_addresses();
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
            proxy: self.upstream_proxy.clone(),
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

    /// The check service, if one is configured.
    ///
    /// # Errors
    ///
    /// The options can't be combined.
    pub(super) fn check(&self) -> Result<Option<CheckService>, Usage> {
        let Some(service) = &self.check else {
            return Ok(None);
        };
        let config = CheckConfig {
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
                names => SentHeaders::Only(names.to_vec()),
            },
            body: self.check_body.map_or(0, Number::get),
            take: self.check_take.clone(),
            ..CheckConfig::new(service.clone())
        };
        CheckService::new(config)
            .map(Some)
            .map_err(Usage::from_error)
    }
}

/// Long enough for a phone with a bad connection.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);

//! The state that all client connections share, and its reload.

pub mod metrics;
pub(crate) mod record_sinks;

use std::cell::RefCell;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use peername_server::access::client_limit::ClientLimit;
use peername_server::access::max_connections::MaxConnections;
use peername_server::addr::PeerAddr;
use prometheus_client::registry::Registry;
use rustls_native_certs::load_native_certs;
use tokio::sync::watch;

use crate::audit::admission::AdmissionLog;
use crate::audit::denials::Denials;
use crate::audit::failures::Failures;
use crate::audit::otlp::SpanQueue;
use crate::authz::authorize::Authorizer;
use crate::authz::rules::{DeniedBy, HTTP_PORTS, Subject};
use crate::authz::{
    self, AccessRules, Approver, CheckClient, CheckConfig, CheckService, InjectedHeaders,
    Unapprovable, rule_with_port,
};
use crate::ca::Authority;
use crate::ca::mint::{Mint, PreparedEpoch};
use crate::host::{Host, HostPort};
use crate::policy::access::Access;
use crate::policy::destination::DestinationDenied;
use crate::policy::host_timeouts::HostTimeouts;
use crate::policy::passthrough::Passthrough;
use crate::policy::pinned::PinnedClients;
use crate::request::client_info::ClientInfo;
use crate::request::remedy::Remedy;
use crate::request::target::RequestTarget;
use crate::upstream::config::UpstreamConfig;
use crate::upstream::trust::OriginTls;
use crate::upstream::{Upstream, UpstreamError};
use record_sinks::RecordSinks;

/// Timeouts and exceptions for the connections of clients. A reload does not change them for connections that are open.
#[derive(Debug)]
pub struct ClientConnectionConfig {
    /// Hosts with TLS that is not terminated (`--passthrough`).
    pub passthrough: Passthrough,
    /// Clients that have refused the proxy's certificate for a host (`--auto-passthrough`).
    pub pinned: Option<PinnedClients>,
    /// The timeout from accept(2) to the PROXY header, then to a complete ClientHello or head of a request; and for each
    /// further head from its first byte to its last.
    pub opening_timeout: Duration,
    /// The timeout between two requests, and for clients that don't read the response.
    pub idle_timeout: Duration,
    /// The timeout for a pause within a response; hosts that are not listed have none.
    pub response_idle_timeouts: HostTimeouts,
    /// The timeout for tunnels on which no byte moves, and for clients that don't read a stream.
    pub tunnel_timeout: Duration,
    /// The contact in the pages and problem details of refusals (`--contact`).
    pub contact: Option<String>,
}

impl ClientConnectionConfig {
    /// The shortest time after which an exchange may be aborted.
    pub(crate) fn shortest_stall(&self) -> Duration {
        match self.response_idle_timeouts.shortest() {
            Some(limit) => limit.min(self.idle_timeout),
            None => self.idle_timeout,
        }
    }

    /// Whether this client's TLS to this host is relayed unopened.
    pub(crate) fn passes_through(&self, ip: IpAddr, host: &Host) -> bool {
        self.passthrough.includes(host)
            || self
                .pinned
                .as_ref()
                .is_some_and(|pinned| pinned.includes(ip, host))
    }
}

/// Lists that apply to open connections, too: after a reload, the new lists decide on the next request of each.
#[derive(Debug, Default)]
pub struct LiveLists {
    /// The clients that may use the proxy.
    pub access: Access,
    /// The requests that are allowed (`--allow`, `--deny`); `None` for all.
    pub rules: Option<Arc<AccessRules>>,
    /// Secrets that are added to allowed requests (`--inject`).
    pub injected: Arc<InjectedHeaders>,
}

/// The lists and the check that decide on requests. A reload swaps them as one value, so that no request is decided by the
/// lists of one configuration and the check of another.
#[derive(Debug)]
struct RequestPolicy {
    lists: Arc<LiveLists>,
    check: Option<CheckService>,
}

/// A reload that was read and validated: lists, trusted roots of origins, and the authority with a leaf key.
#[derive(Debug)]
pub struct Reload {
    lists: Arc<LiveLists>,
    tls: OriginTls,
    epoch: PreparedEpoch,
}

/// The proxy without its connections, for one configuration. A reload creates a new state, which shares the mint, the policy,
/// the limits and the metrics; each connection keeps the state with which it began.
#[derive(Debug)]
pub struct InterceptState {
    policy: Arc<ArcSwap<RequestPolicy>>,
    pub(crate) config: ClientConnectionConfig,
    pub(crate) mint: Arc<Mint>,
    pub(crate) upstream: Upstream,
    pub(crate) sinks: RecordSinks,
    pub(crate) client_limit: Arc<ClientLimit>,
    approver: Option<Arc<dyn Approver>>,
    admissions: Option<Arc<dyn AdmissionLog>>,
    draining: watch::Sender<bool>,
}

impl InterceptState {
    /// Creates the state, for at most `connections` client connections.
    pub fn new(
        lists: Arc<LiveLists>,
        config: ClientConnectionConfig,
        mint: Mint,
        upstream: Upstream,
        check: Option<CheckService>,
        connections: MaxConnections,
    ) -> Self {
        let (draining, _) = watch::channel(false);
        Self {
            policy: Arc::new(ArcSwap::from_pointee(RequestPolicy { lists, check })),
            config,
            mint: Arc::new(mint),
            upstream,
            sinks: RecordSinks::default(),
            client_limit: Arc::new(ClientLimit::new(connections)),
            approver: None,
            admissions: None,
            draining,
        }
    }

    /// Sets the approver of requests that no access rule matches.
    #[must_use]
    pub fn with_approver(self, approver: Option<Arc<dyn Approver>>) -> Self {
        Self { approver, ..self }
    }

    /// Sets the log in which each request has to be recorded before it is sent.
    #[must_use]
    pub fn with_admission_log(self, admissions: Option<Arc<dyn AdmissionLog>>) -> Self {
        Self { admissions, ..self }
    }

    /// Sets the queue for the spans of requests.
    #[must_use]
    pub fn with_spans(mut self, spans: Option<SpanQueue>) -> Self {
        self.sinks.spans = spans;
        self
    }

    /// Sets the summaries of denials and failures.
    #[must_use]
    pub fn with_summary(mut self, denials: Arc<Denials>, failures: Arc<Failures>) -> Self {
        self.sinks.denials = Some(denials);
        self.sinks.failures = Some(failures);
        self
    }

    /// Prepares a reload: reads the trusted roots of origins again, and creates a leaf key. This may take long, and does not
    /// change the state.
    pub fn prepare_reload(
        &self,
        lists: Arc<LiveLists>,
        authority: Authority,
        extra_ca: &[PathBuf],
    ) -> anyhow::Result<Reload> {
        Ok(Reload {
            lists,
            tls: OriginTls::new(&load_native_certs(), extra_ca, &authority.certificates())?,
            epoch: self.mint.prepare(authority)?,
        })
    }

    /// Returns the check service after a reload.
    pub fn next_check(&self, config: Option<CheckConfig>) -> anyhow::Result<Option<CheckService>> {
        match (&self.policy.load().check, config) {
            (None, None) => Ok(None),
            (Some(check), Some(config)) => Ok(Some(check.successor(config)?)),
            (None, Some(_)) | (Some(_), None) => {
                anyhow::bail!("check can't be added or removed without a restart")
            }
        }
    }

    /// Applies a reload, and returns the state for connections that are accepted from now on. The new authority, lists and
    /// check also apply to open connections.
    #[must_use]
    pub fn successor(
        &self,
        reload: Reload,
        mut config: ClientConnectionConfig,
        mut upstream: UpstreamConfig,
        check: Option<CheckService>,
    ) -> Self {
        self.mint.renew(reload.epoch);
        upstream.destinations.rules = self.upstream.replace_rules(reload.lists.rules.clone());
        if let Some(check) = &check {
            check.update_suspended_metric();
        }
        let lists = reload.lists;
        self.policy.store(Arc::new(RequestPolicy { lists, check }));
        if let (Some(next), Some(pinned)) = (&mut config.pinned, &self.config.pinned) {
            *next = pinned.clone();
        }
        Self {
            policy: Arc::clone(&self.policy),
            config,
            mint: Arc::clone(&self.mint),
            upstream: self.upstream.successor(upstream, reload.tls),
            sinks: self.sinks.clone(),
            client_limit: Arc::clone(&self.client_limit),
            approver: self.approver.clone(),
            admissions: self.admissions.clone(),
            draining: self.draining.clone(),
        }
    }

    /// Counts and logs a connection that ended before its first request, or within the head of a later one.
    pub(crate) fn count_failed_connection(&self, peer: PeerAddr, reason: &'static str) {
        self.sinks.metrics.count_failed_connection(reason);
        tracing::debug!(%peer, reason, "connection ended before a request was complete");
    }

    /// The current lists.
    pub(crate) fn lists(&self) -> Arc<LiveLists> {
        Arc::clone(&self.policy.load().lists)
    }

    /// Registers all metrics.
    pub fn register(&self, registry: &mut Registry) {
        self.sinks.metrics.register(registry);
        if let Some(spans) = &self.sinks.spans {
            spans.register(registry);
        }
        self.upstream.register(registry);
        self.mint.register(registry);
        if let Some(check) = &self.policy.load().check {
            check.register(registry);
        }
    }

    /// Whether no connection is accepted any more.
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Creates the authorizer of one request of this client to this target, by the current lists and check.
    pub(crate) fn authorizer<'a>(
        &self,
        client: &'a ClientInfo,
        target: &'a Arc<RequestTarget>,
    ) -> Authorizer<'a> {
        let policy = self.policy.load();
        Authorizer {
            check: policy.check.as_ref().map(worker_client),
            ..self.authorizer_by_lists(&policy.lists, client, target)
        }
    }

    /// Creates the authorizer by these lists, without a check service, of which only a worker has a client.
    pub(crate) fn authorizer_by_lists<'a>(
        &self,
        lists: &LiveLists,
        client: &'a ClientInfo,
        target: &'a Arc<RequestTarget>,
    ) -> Authorizer<'a> {
        Authorizer {
            rules: lists.rules.clone(),
            injected: Arc::clone(&lists.injected),
            approver: self.approver.clone(),
            unapprovable: self.unapprovable(&target.to),
            admissions: self.admissions.clone(),
            check: None,
            relays_tunnel: false,
            client,
            target,
        }
    }

    /// Why the approver is not asked about this destination; `None` if it is asked, or if there is no approver.
    fn unapprovable(&self, to: &HostPort) -> Option<Unapprovable> {
        if self.approver.as_ref()?.lists_denied_addresses() {
            return None;
        }
        let may_suggest_rule = self.may_suggest_rule(&to.host);
        match self.upstream.admit_address(to) {
            Err(UpstreamError::Destination(addr, why)) => {
                let remedy = why.remedy(to, None, addr, may_suggest_rule);
                Some(Unapprovable::new(why, remedy))
            }
            _ if to.host.as_ip().is_none() && !self.upstream.config().may_open_port(to) => {
                let other = Remedy::Port(to.port);
                let remedy = Remedy::rule_or(may_suggest_rule, rule_with_port(to), other);
                Some(Unapprovable::new(DestinationDenied::Port, Some(remedy)))
            }
            _ => None,
        }
    }

    /// Probes the check service, if one is configured. The error tells why it can't be asked.
    pub(crate) async fn probe_check(&self) -> Result<(), authz::AuthzError> {
        match &self.policy.load_full().check {
            Some(check) => check.probe().await,
            None => Ok(()),
        }
    }

    /// Whether requests go on unchecked while the check service can't be asked.
    pub(crate) fn fails_open(&self) -> bool {
        let policy = self.policy.load();
        policy.check.as_ref().is_some_and(CheckService::fails_open)
    }

    /// Whether connections to this destination are relayed unopened, because a rule names its port.
    pub(crate) fn relays(&self, to: &HostPort) -> bool {
        let rules = &self.policy.load().lists.rules;
        rules.as_ref().is_some_and(|rules| rules.relays(to))
    }

    /// The option that would open this port of the host; `None` if a rule denies it.
    pub(crate) fn port_remedy(&self, to: &HostPort) -> Option<Remedy> {
        let policy = self.policy.load();
        let rules = policy.lists.rules.as_ref();
        let decision = rules.map(|rules| rules.decide(to, Subject::RelayedTunnel));
        if matches!(decision, Some(Err(DeniedBy::Rule(_)))) {
            return None;
        }
        let other = match HTTP_PORTS.contains(&to.port) {
            true => Remedy::Port(to.port),
            false => Remedy::AllowTcp(rule_with_port(to)),
        };
        Some(Remedy::rule_or(rules.is_some(), rule_with_port(to), other))
    }

    /// Forgets the refused connections to this port of the host's loopback: they were for a server in the jail.
    pub fn forget_refused(&self, port: u16) {
        if let Some(denials) = &self.sinks.denials {
            denials.forget_refused(port);
        }
    }

    /// Whether a check service or an approver decides on each request, so that tunnels must not be relayed unopened.
    pub(crate) fn inspects_requests(&self) -> bool {
        self.policy.load().check.is_some() || self.approver.is_some()
    }

    /// Whether access lists, an approver or a check service decide on requests.
    pub(crate) fn has_policy(&self) -> bool {
        self.inspects_requests() || self.policy.load().lists.rules.is_some()
    }

    /// Whether a rule for the whole host may be suggested to open its address. It may not where the host's rules have methods
    /// or paths: it would allow what they do not.
    pub(crate) fn may_suggest_rule(&self, host: &Host) -> bool {
        let policy = self.policy.load();
        let rules = policy.lists.rules.as_ref();
        rules.is_some_and(|rules| !rules.limits_requests(host))
    }

    /// Starts the drain: connections end as soon as they can.
    pub(crate) fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Returns once the drain has started.
    pub(crate) async fn wait_draining(&self) {
        // It can't fail: `self` holds the sender.
        let _ = self
            .draining
            .subscribe()
            .wait_for(|draining| *draining)
            .await;
    }
}

/// This worker's client of the check service. Replaced after a reload that has replaced the service.
fn worker_client(check: &CheckService) -> CheckClient {
    CHECK_CLIENT.with_borrow_mut(|stored| {
        let current = stored.take().filter(|client| check.has_client(client));
        stored
            .insert(current.unwrap_or_else(|| check.client()))
            .clone()
    })
}

thread_local! {
    static CHECK_CLIENT: RefCell<Option<CheckClient>> = const { RefCell::new(None) };
}

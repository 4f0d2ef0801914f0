//! The whole configuration of one run of `peername intercept`, validated before anything is opened.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use peername_daemon::listeners::{self, BoundAddresses, ListenPlan, ListenerIds};
use peername_daemon::options::{Given, Table};
use peername_daemon::process::Process;
use peername_daemon::process::default_workers;
use peername_daemon::reload;
use peername_daemon::reload::file_watch::Fingerprints;
use peername_daemon::usage::{ErrorCollector, UsageError};
use peername_intercept::authz::{
    AccessRules, CheckConfig, CheckService, ShadowedRule, rule_for, rule_with_port,
};
use peername_intercept::ca::{Authority, CaError};
use peername_intercept::listener::jail::JailListener;
use peername_intercept::listener::{ListenerKind, ListenerService};
use peername_intercept::otlp::SpanExporter;
use peername_intercept::policy::destination::{Destinations, SharedRules};
use peername_intercept::policy::tunnelled::TunnelledDestination;
use peername_intercept::state::{InterceptState, LiveLists};
use peername_observe::shell::quote;
use peername_proxy::udp::UdpConfig;
use peername_server::own_addresses::OwnAddresses;
use peername_server::workers::services::Services;
use peername_sys::Transport;

use super::options::{Args, DEFAULT_LISTEN, Intercept};
use crate::cmd::ca::ca_dir;
use crate::config_file::{Configuration, Kind, Problems};

/// The validated configuration.
pub(crate) struct Setup {
    pub(super) common: reload::Common,
    pub(crate) options: Intercept,
    pub(super) lists: Arc<LiveLists>,
    pub(crate) check: Option<CheckConfig>,
    explicit: Vec<SocketAddr>,
    transparent: Vec<SocketAddr>,
    pub(super) jail: Option<JailPlan>,
}

/// The listeners of a jail.
pub(crate) struct JailPlan {
    /// The addresses of the listeners, in the jail's network.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Serves the connections of the listeners.
    pub(crate) listener: Arc<JailListener>,
    /// The ports that are open at every host that is allowed. Those of rules are open at the hosts of these rules only.
    pub(crate) ports: Vec<u16>,
    /// Whether neither rules nor a check decide, because a list is learned.
    pub(crate) is_learning: bool,
    /// Whether a helper decides on what no rule matches (`--ask`, `--learn`).
    pub(crate) has_approver: bool,
}

impl Setup {
    /// Reads the options, or the file that they name, and the lists; resolves names.
    pub(super) fn load(args: &Args, files: &mut Fingerprints) -> Result<Self, UsageError> {
        let command_line = Configuration {
            intercept: Some(Table::from_command_line(args.intercept.clone())),
            ..Configuration::default()
        };
        let file = args.source.config.as_deref();
        let mut loaded = Configuration::load(file, Kind::Intercept, files, command_line)
            .with_command_line(&args.process);
        let config = &mut loaded.config;
        if let Some(table) = &config.intercept {
            files.note_all(table.options().files());
            let policies = table.options().check.policy_files();
            files.note_all(policies.paths.iter().map(PathBuf::as_path));
            config.warnings.extend(policies.warning());
        }
        loaded.validate(Self::new).map_err(UsageError::from_error)
    }

    /// Validates the table of a file, or the options of a command line.
    pub(crate) fn new(mut config: Configuration) -> Result<Self, Problems> {
        if let Some(table) = &mut config.intercept
            && table.options().listens_by_default()
        {
            let listen = vec![DEFAULT_LISTEN.to_string()];
            table.given.show_default("listen", listen);
        }
        let common = config.take_common(default_workers());
        let table = config
            .intercept
            .unwrap_or_else(|| Table::from_command_line(Given::default()));
        let options = table.options();
        let mut errors = ErrorCollector::default();
        // Not for a jail, whose interceptor inherits the file.
        errors.note(options.check_log());
        let setup = errors.note(Self::validate(common, options.clone(), None));
        errors
            .into_result(setup)
            .map_err(|errors| Problems(table.located(&errors).collect()))
    }

    /// Validates the options of a jail, which has no listeners but its own. `fallback` decides where neither access lists nor a
    /// check do.
    pub(crate) fn for_jail(
        process: Process,
        options: Intercept,
        jail: JailPlan,
        fallback: Option<AccessRules>,
    ) -> Result<Self, UsageError> {
        let common = reload::Common {
            process,
            json: String::new(),
            warnings: Vec::new(),
        };
        Ok(Self {
            explicit: Vec::new(),
            jail: Some(jail),
            ..Self::validate(common, options, fallback)?
        })
    }

    fn validate(
        common: reload::Common,
        options: Intercept,
        fallback: Option<AccessRules>,
    ) -> Result<Self, UsageError> {
        let mut errors = ErrorCollector::default();
        errors.note(options.check.refuse_unused_tls_files());
        if common.process.logging.is_go_mmproxy_format() {
            errors.push("--log-format go-mmproxy has no line for a request: use text or json");
        }
        let check = errors.note(options.check.config());
        let service = check.clone().flatten().map(CheckService::new).transpose();
        errors.note(service.map_err(UsageError::from_error));
        let explicit = errors.note(options.explicit());
        let transparent = errors.note(options.transparent());
        let mut taken = HashSet::new();
        for (option, addrs) in [("--listen", &explicit), ("--transparent", &transparent)] {
            for addr in addrs.iter().flatten().filter(|&addr| !taken.insert(addr)) {
                errors.push(format!("{option} {addr} is listened on already"));
            }
        }
        // `access` resolves the listeners, too, and would report the same error again.
        let access = explicit
            .as_ref()
            .and_then(|_| errors.note(options.access()));
        let rules = errors.note(options.access_rules());
        let injected = errors.note(options.injected_headers());
        errors.build(|| {
            let (check, rules) = (check?, rules?);
            let fallback = fallback.filter(|_| check.is_none()).map(Arc::new);
            Some(Self {
                lists: Arc::new(LiveLists {
                    access: access?,
                    rules: rules.or(fallback),
                    injected: Arc::new(injected?),
                }),
                check,
                explicit: explicit?,
                transparent: transparent?,
                jail: None,
                common,
                options,
            })
        })
    }

    /// Whether neither access lists nor a check decide on requests.
    pub(crate) fn is_unchecked(&self) -> bool {
        self.check.is_none() && self.lists.rules.is_none()
    }

    /// Logs a warning for each option that is valid, but hardly what was meant: a file with a secret that others may read, a secret
    /// for a host to which no request is allowed, a rule that denies nothing, and a host in a rule that is the name of a file.
    pub(super) fn warn_of_options(&self) {
        let mut shadowed = self
            .lists
            .rules
            .iter()
            .flat_map(|rules| rules.shadowed_rules());
        if let Some(ShadowedRule { denial, by }) = shadowed.next() {
            let others = match shadowed.count() {
                0 => String::new(),
                count => format!(" ({count} more such rules)"),
            };
            tracing::warn!(
                "the rule {denial} denies nothing: {by} comes before it, and the first match decides{others}"
            );
        }
        if let Some(host) = self.options.rules.host_like_a_file() {
            tracing::warn!(
                "{host} in a rule is a host, and a file of this name is here: for the rules in it write @{host}"
            );
        }
        let has_approver = self.jail.as_ref().is_some_and(|jail| jail.has_approver);
        for to in self
            .lists
            .rules
            .iter()
            .flat_map(|rules| self.lists.injected.denied_by(rules, has_approver))
        {
            tracing::warn!(
                "--inject for {to}: no rule allows a request to this host, so its secret is not used; --allow {} allows all",
                quote(&rule_for(to))
            );
        }
        let passthrough = self.options.client_connections().passthrough;
        for to in self.lists.injected.passed_through(&passthrough) {
            tracing::warn!(
                "--inject for {to}: --passthrough leaves the TLS of this host unopened, so its secret is not used"
            );
        }
        if let Some(file) = self.options.exposed_users() {
            tracing::warn!(
                "--proxy-auth {}: others may read these hashes of passwords: chmod o= {}",
                file.display(),
                quote(file)
            );
        }
        let opened = self.jail.as_ref().map(|jail| &jail.listener.opened);
        for to in self.lists.injected.destinations() {
            if opened.is_some_and(|opened| !opened.contains(&to.port)) {
                tracing::warn!(
                    "--inject for {to}: connections to this port are not opened as TLS or HTTP, so its secret is not used; write the \
                     rule as {}/, or open the port by --port {}",
                    rule_with_port(to),
                    to.port
                );
            }
        }
        for file in self.lists.injected.exposed_files() {
            tracing::warn!(
                "--inject {}: others may read this secret: chmod 600 {}",
                file.display(),
                quote(file)
            );
        }
    }

    /// Logs a warning if requests may be forwarded without a decision of rules or a check.
    pub(super) fn warn_of_openness(&self) {
        if self.is_unchecked() {
            tracing::warn!(
                "no --check and no --allow: requests to every permitted destination are allowed"
            );
        }
        if self.check.is_some() && self.options.check.fails_open() {
            tracing::warn!("requests are forwarded unchecked whenever the check service fails");
        }
    }

    /// Starts the exporter of spans, if there is a collector for them.
    ///
    /// # Errors
    ///
    /// [`UsageError`]: an environment variable of OpenTelemetry's is not valid.
    pub(super) fn start_exporter(&self) -> Result<Option<SpanExporter>, UsageError> {
        self.options
            .otlp
            .as_ref()
            .map(SpanExporter::start)
            .transpose()
            .map_err(UsageError::from_error)
    }

    /// Reads the authority.
    pub(super) fn authority(&self, files: &mut Fingerprints) -> anyhow::Result<Authority> {
        let ca = self.options.ca.path()?;
        files.note(&Authority::file(&ca));
        open_authority(&ca)
    }

    /// The listeners: explicit, transparent, and those of a jail. `can_tproxy`: TPROXY rules need a privilege, REDIRECT rules
    /// don't.
    pub(crate) fn listen_plans(&self, can_tproxy: bool) -> Vec<ListenPlan> {
        let plan = |addresses: &[SocketAddr], transparent| ListenPlan {
            tcp: addresses.to_vec(),
            udp: Vec::new(),
            transparent,
            udp_config: UdpConfig::default(),
            steered_by: None,
        };
        vec![
            plan(&self.explicit, false),
            plan(&self.transparent, can_tproxy),
            plan(self.jail_addresses(), false),
        ]
    }

    fn jail_addresses(&self) -> &[SocketAddr] {
        self.jail.as_ref().map_or(&[], |jail| &jail.addresses)
    }

    fn tunnelled(&self) -> &[TunnelledDestination] {
        self.jail
            .as_ref()
            .map_or(&[], |jail| &jail.listener.tunnelled)
    }

    /// The service of each listener, with this state.
    pub(crate) fn services(
        &self,
        ids: &ListenerIds,
        state: &Arc<InterceptState>,
    ) -> Services<ListenerService> {
        let mut kinds = vec![
            (ListenerKind::Explicit, &self.explicit),
            (ListenerKind::Transparent, &self.transparent),
        ];
        if let Some(jail) = &self.jail {
            let kind = ListenerKind::Jail(Arc::clone(&jail.listener));
            kinds.push((kind, &jail.addresses));
        }
        let mut services = Vec::new();
        for (kind, addresses) in kinds {
            let state = Arc::clone(state);
            let service = Arc::new(ListenerService { kind, state });
            for &addr in addresses {
                if let Some(&id) = ids.get(&(Transport::Tcp, addr)) {
                    services.push((id, Arc::clone(&service)));
                }
            }
        }
        services.into_iter().collect()
    }

    /// The destination policy. The ports of listeners and of the admin endpoint are refused as this proxy's own. The listeners
    /// of a jail are in another network, where their ports are those of destinations, so these are allowed.
    pub(crate) fn destinations(
        &self,
        own_addresses: &OwnAddresses,
        bound: &BoundAddresses,
    ) -> Destinations {
        let in_jail = self.jail_addresses();
        Destinations {
            allowed: self.options.allowed_destinations(),
            ports: self
                .jail
                .as_ref()
                .map_or_else(Vec::new, |jail| jail.ports.clone()),
            rules: SharedRules::new(self.lists.rules.clone()),
            relayed: TunnelledDestination::access_rules(self.tunnelled()),
            treats_loopback_as_one: self.jail.as_ref().is_some_and(|jail| jail.is_learning),
            own_addresses: own_addresses.clone(),
            listening: bound
                .values()
                .filter(|addr| !in_jail.contains(addr))
                .map(SocketAddr::port)
                .chain(self.common.process.admin.ports())
                .collect(),
        }
    }
}

/// Reads the authority of a directory.
///
/// # Errors
///
/// [`UsageError`] if the directory has no authority, which only the user can create; or the authority is not valid.
pub(super) fn open_authority(dir: &Path) -> anyhow::Result<Authority> {
    Authority::open(dir).map_err(|error| match error {
        CaError::Absent { .. } => UsageError::from_error(error).into(),
        error => ca_dir::suggest_ca_option(error.into()),
    })
}

impl reload::Setup for Setup {
    fn common(&self) -> &reload::Common {
        &self.common
    }

    fn summary(&self) -> String {
        listeners::summary(&self.listen_plans(false))
    }
}

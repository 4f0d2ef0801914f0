//! The whole configuration of one run of `peername proxy`, validated before anything is opened.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;

use peername_daemon::listeners::self_connect::reached_listener;
use peername_daemon::listeners::{self, BoundAddresses, ListenPlan, TRANSPORTS, resolve_listeners};
use peername_daemon::options::{Origin, Table};
use peername_daemon::process::default_workers;
use peername_daemon::reload;
use peername_daemon::reload::client_lists::ClientPolicies;
use peername_daemon::reload::file_watch::Fingerprints;
use peername_daemon::usage::{ErrorCollector, UsageError};
use peername_proto::HostAddress;
use peername_proxy::config::{Config, TargetRule};
use peername_proxy::reply_path::ProbeTarget;
use peername_proxy::routes::Backend;
use peername_relay::Method;
use peername_server::addr::LocalAddr;
use peername_server::own_addresses::OwnAddresses;
use peername_sys::Transport;

use super::options::{Args, ExpectedFamilies, HostArgs, Listener};
use crate::config_file::{Configuration, Kind, Problems};

/// The validated configuration.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) common: reload::Common,
    pub(crate) host: HostArgs,
    pub(super) services: Vec<ServicePlan>,
}

/// The listeners of one `[[listen]]` table or command line, and their configuration.
#[derive(Debug)]
pub(super) struct ServicePlan {
    pub(super) sockets: ListenPlan,
    pub(super) config: Arc<Config>,
    expected: ExpectedFamilies,
    /// Allowed destinations that are a single address and port.
    single_destinations: Vec<SocketAddr>,
    origin: Origin,
}

/// A backend of the clients of a listener.
#[derive(Clone, Copy)]
struct ClientBackend {
    backend: Backend,
    /// Whether clients choose the port (`same`): the backend is one of many then, each with another port.
    any_port: bool,
}

impl Setup {
    /// Reads the options and all files that they name, and resolves names.
    pub(super) fn load(args: &Args, files: &mut Fingerprints) -> Result<Self, UsageError> {
        let command_line = Configuration {
            listen: vec![Table::from_command_line(args.listener.clone())],
            ..Configuration::default()
        };
        let file = args.source.config.as_deref();
        let loaded = Configuration::load(file, Kind::Listen, files, command_line)
            .with_command_line(&args.top);
        for table in &loaded.config.listen {
            files.note_all(table.options().headers.trust_files());
        }
        loaded.validate(Self::new).map_err(UsageError::from_error)
    }

    /// Validates the tables of a file, or the options of a command line.
    pub(crate) fn new(mut config: Configuration) -> Result<Self, Problems> {
        let common = config.take_common(default_workers());
        let mut problems = Problems::default();
        let services = problems.plan_tables(&config.listen, ServicePlan::new);
        let setup = Self {
            common,
            host: config.top.options.host,
            services,
        };
        problems.0.extend(setup.problems(|_| false));
        problems.into_result()?;
        Ok(setup)
    }

    /// The addresses to listen on, of both protocols.
    pub(crate) fn all_listeners(&self) -> impl Iterator<Item = (Transport, SocketAddr)> + '_ {
        self.services
            .iter()
            .flat_map(|plan| plan.sockets.listeners())
    }

    /// Every backend that needs rules, once. If clients choose the port of a loopback backend, port 0 stands for all ports.
    pub(super) fn backends(&self) -> Vec<Backend> {
        let mut known = HashSet::new();
        self.services
            .iter()
            .flat_map(|plan| plan.routed_backends().chain(plan.loopback_destinations()))
            .filter(|&backend| known.insert(backend))
            .collect()
    }

    /// The marks of connections, each once: replies from other hosts are recognized by them.
    pub(super) fn marks(&self) -> BTreeSet<NonZeroU32> {
        self.services
            .iter()
            .filter_map(|plan| plan.config.upstream.mark)
            .collect()
    }

    /// The backends to probe at the start: those for which clients are expected. A backend with `any_port` represents
    /// all of its ports. Any other backend is probed when its first client connects.
    pub(crate) fn probes(&self) -> impl Iterator<Item = ProbeTarget> + '_ {
        self.services.iter().flat_map(move |plan| {
            plan.client_backends()
                .filter(move |known| match known.backend.address.ip() {
                    IpAddr::V4(_) => plan.expected.v4,
                    IpAddr::V6(_) => plan.expected.v6,
                })
                .map(move |ClientBackend { backend, any_port }| ProbeTarget {
                    backend,
                    any_port,
                    mark: plan.config.upstream.mark,
                    is_kept: self.host.setup_routes,
                })
        })
    }

    /// Whether clients choose the port of this backend: its port is `same`, and TPROXY rules redirect any port to its listener.
    pub(crate) fn is_port_chosen_by_clients(&self, backend: Backend) -> bool {
        self.services
            .iter()
            .filter(|plan| plan.config.transparent)
            .flat_map(ServicePlan::client_backends)
            .any(|known| known.any_port && known.backend == backend)
    }

    /// The listeners of each service.
    pub(super) fn listen_plans(&self) -> Vec<ListenPlan> {
        self.services
            .iter()
            .map(|plan| plan.sockets.clone())
            .collect()
    }

    /// The relay methods that were chosen explicitly, each once.
    pub(super) fn chosen_relays(&self) -> BTreeSet<&'static str> {
        self.services
            .iter()
            .filter(|plan| !plan.sockets.tcp.is_empty())
            .filter_map(|plan| match plan.config.relay {
                Method::Auto => None,
                Method::Copy => Some("copy"),
                Method::Splice => Some("splice"),
            })
            .collect()
    }

    /// Which clients may connect to each listener.
    pub(super) fn client_policies(&self, bound: &BoundAddresses) -> ClientPolicies {
        let mut policies = ClientPolicies::default();
        for plan in &self.services {
            policies.add(plan.sockets.listeners(), bound, &plan.config.clients);
        }
        policies
    }

    /// Whether a list of clients is in a file.
    pub(super) fn has_list_files(&self) -> bool {
        self.services
            .iter()
            .any(|plan| plan.config.clients.files().next().is_some())
    }

    /// Validates again with this host's addresses, which only the kernel knows.
    pub(super) fn check_at(&self, host: &OwnAddresses) -> Result<(), UsageError> {
        let problems = self.problems(|ip| host.kind_of(ip) == Some(HostAddress::Own));
        Problems(problems)
            .into_result()
            .map_err(UsageError::from_error)
    }

    /// Contradictions between services, and targets that are listeners of the proxy. `is_own` recognizes addresses of this host
    /// beside loopback.
    pub(super) fn problems(&self, is_own: impl Fn(IpAddr) -> bool + Copy) -> Vec<String> {
        TRANSPORTS
            .into_iter()
            .flat_map(|transport| self.transport_problems(transport, is_own))
            .collect()
    }

    fn transport_problems(
        &self,
        transport: Transport,
        is_own: impl Fn(IpAddr) -> bool + Copy,
    ) -> Vec<String> {
        let mut taken = HashSet::new();
        let mut problems = Vec::new();
        for plan in &self.services {
            let mut duplicate = None;
            for &addr in plan.sockets.listen(transport) {
                if !taken.insert(addr) {
                    duplicate.get_or_insert(addr);
                }
            }
            if let Some(addr) = duplicate {
                let text = format!("--listen {addr} is given twice");
                problems.push(plan.origin.locate(&text));
            }
        }
        // Inherited listeners are in another network namespace, where no target leads to them.
        if self.host.sockets_from_outside {
            return problems;
        }
        for plan in &self.services {
            let targets = plan
                .client_backends()
                .map(|known| known.backend)
                .filter(|backend| backend.transport == transport)
                .map(|backend| backend.address);
            for target in targets {
                if let Some(listener) = reached_listener(&taken, target, is_own) {
                    let text = format!(
                        "--target {target}: the proxy would connect to itself, because it listens on {listener}; choose another \
                         port by --listen, or name the server's"
                    );
                    problems.push(plan.origin.locate(&text));
                }
            }
            if plan.sockets.listen(transport).is_empty() {
                continue;
            }
            for &target in &plan.single_destinations {
                if reached_listener(&taken, target, is_own).is_some() {
                    let text =
                        format!("--allow-destination {target}: the proxy would connect to itself");
                    problems.push(plan.origin.locate(&text));
                }
            }
        }
        problems
    }
}

impl reload::Setup for Setup {
    fn common(&self) -> &reload::Common {
        &self.common
    }

    fn summary(&self) -> String {
        listeners::summary(self.services.iter().map(|plan| &plan.sockets))
    }
}

impl ServicePlan {
    /// Validates a table by itself.
    fn new(table: &Table<Listener>) -> Result<Self, UsageError> {
        let listener = table.options();
        let mut errors = ErrorCollector::default();
        let config = errors.note(listener.config());
        let listen = errors.note(resolve_listeners("--listen", &listener.listen));
        let (config, listen) = errors.into_result(config.zip(listen))?;
        let udp_config = listener.udp.config();
        Ok(Self {
            sockets: ListenPlan {
                tcp: listener.protocol.tcp(&listen).to_vec(),
                udp: listener.protocol.udp(&listen).to_vec(),
                transparent: config.transparent,
                udp_config,
                steered_by: Some(udp_config.dialect),
            },
            config: Arc::new(config),
            expected: listener.expected_families(),
            single_destinations: listener.single_destinations(),
            origin: table.origin.clone(),
        })
    }

    /// The backends that routing rules are for.
    fn routed_backends(&self) -> impl Iterator<Item = Backend> + '_ {
        self.client_backends().map(move |known| {
            let mut backend = known.backend;
            // TPROXY rules redirect any port to the listener.
            if known.any_port && self.config.transparent && backend.address.ip().is_loopback() {
                backend.address.set_port(0);
            }
            backend
        })
    }

    /// Loopback, for each family and protocol in which headers may name destinations there.
    fn loopback_destinations(&self) -> impl Iterator<Item = Backend> + '_ {
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        let is_listed = move |ip: &IpAddr| {
            self.config
                .destination_policy
                .as_ref()
                .is_some_and(|policy| policy.lists_loopback(ip.is_ipv4()))
        };
        loopback.into_iter().filter(is_listed).flat_map(move |ip| {
            TRANSPORTS
                .into_iter()
                .filter(move |&transport| !self.sockets.listen(transport).is_empty())
                .map(move |transport| Backend::new(SocketAddr::new(ip, 0), transport))
        })
    }

    /// The backends of the plan's clients. The port of a rule with `same` depends on the listener, so such a rule has a backend
    /// for each listener; another rule has one backend.
    fn client_backends(&self) -> impl Iterator<Item = ClientBackend> + '_ {
        TRANSPORTS.into_iter().flat_map(move |transport| {
            self.config.upstream.targets.iter().flat_map(move |rule| {
                let any_port = matches!(rule, TargetRule::SamePort(_));
                let count = if any_port { usize::MAX } else { 1 };
                self.sockets
                    .listen(transport)
                    .iter()
                    .take(count)
                    .map(move |&addr| {
                        let address = rule.for_listener(LocalAddr(addr)).0;
                        let backend = Backend { address, transport };
                        ClientBackend { backend, any_port }
                    })
            })
        })
    }
}

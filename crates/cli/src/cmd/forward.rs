//! `peername forward`: the sender of PROXY headers, for sites with a balancer that can't write them.

pub(crate) mod options;
pub(crate) mod setup;

use std::process::ExitCode;
use std::sync::Arc;

use peername_observe::admin::ConfigInForce;
use peername_proxy::forward::{ForwardService, Forwarder};
use peername_proxy::telemetry::counters::Counters;
use peername_proxy::udp::{OpenSessions, UdpForwarder};
use peername_relay::check_uring;
use peername_server::access::client_limit::ClientLimit;
use peername_server::confinement::Needs;
use peername_server::listeners::InheritedSockets;
use peername_server::own_addresses::OwnAddresses;
use peername_server::workers::services::ServiceHandle;
use peername_sys::ipc::listen_fds;
use peername_sys::process::caps::{CapabilitySet, keep_only};

pub(crate) use options::Args;

use crate::admin::{ServedProxy, serve_proxy};
use crate::lifecycle::{self, Signals};
use crate::listeners::UdpGroup;
use crate::listeners::running::{Opened, RunningListeners, UdpTasks};
use crate::logging;
use crate::process::Process;
use crate::reload::client_lists::{ClientLists, OpenClients};
use crate::reload::file_watch::{FileWatch, Fingerprints};
use crate::reload::{Reload, Running, serve};
use crate::upgrade::{self, Inherited, Predecessor, Upgrader, Upgrades};
use setup::Setup;

/// The running forwarder.
struct Control {
    args: Args,
    setup: Setup,
    services: ServiceHandle<ForwardService>,
    counters: Arc<Counters>,
    sessions: OpenSessions,
    client_lists: ClientLists,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (upgrader, previous) = upgrade::begin("forward")?;
    let mut files = Fingerprints::default();
    let setup = Setup::load(args, &mut files)?;
    lifecycle::block_on(start(args, setup, files, upgrader, previous))
}

async fn start(
    args: &Args,
    setup: Setup,
    files: Fingerprints,
    upgrader: Upgrader,
    mut previous: Option<Predecessor>,
) -> anyhow::Result<ExitCode> {
    let signals = Signals::listen()?;
    setup.check_at(&OwnAddresses::read().await?)?;
    let mut given = InheritedSockets::new(listen_fds::receive()?);
    let workers = setup.process.workers();
    let inherited = Inherited::of(previous.as_ref());
    let admin = setup.process.admin.open(&mut given, previous.as_mut())?;
    let open = Opened::open(setup.listen_plans(), workers, given, previous)?;
    // It connects from its own address: no privilege is needed any more.
    keep_only(CapabilitySet::empty())?;
    let needs = Needs {
        removes: setup.process.admin.socket_files(),
        io_uring: !open.sockets.tcp.addrs().is_empty() && check_uring().is_ok(),
        watches: args.source.may_watch() || setup.has_list_files(),
        ..Needs::default()
    };
    let confinement = setup.process.sandbox.confine(needs)?;
    let (_log, log_level) = setup.process.logging.start();
    inherited.set_log_level(&log_level);
    confinement.log();
    let counters = Arc::<Counters>::default();
    let sessions = OpenSessions::default();
    let services = ServiceHandle::new(setup.services(&open.sockets.numbers()));
    let groups = open.sockets.groups.len();
    let capacity =
        lifecycle::capacity(setup.process.workers(), groups, open.sockets.descriptors())?;
    let forwarder = Forwarder {
        services: services.clone(),
        counters: Arc::clone(&counters),
        client_limit: ClientLimit::new(capacity.connections),
    };
    let udp = logging::join(
        open.sockets
            .groups
            .iter()
            .flat_map(|one| one.sockets.addrs()),
    );
    let tcp = logging::join(open.sockets.tcp.addrs());
    let tasks = udp_tasks(&services, &counters, &sessions);
    let client_policies = setup.client_policies(&open.sockets.actual());
    let listeners = open.start(&Arc::new(forwarder), capacity, Vec::new(), tasks)?;
    tracing::info!(
        tcp,
        udp,
        upstream = setup.targets(),
        workers = setup.process.workers(),
        "listening"
    );
    let open_clients = OpenClients {
        connections: listeners.workers.connections(),
        sessions: sessions.clone(),
        is_denied: Arc::new(|entry, policy| policy.judge(entry.peer().ip()).is_err()),
    };
    let history = inherited.history();
    let client_lists = ClientLists::start(client_policies, open_clients, history.clone());
    let config = ConfigInForce::new(&setup.json);
    let serve_admin = |sockets| {
        let running = ServedProxy {
            command: "forward",
            counters: Arc::clone(&counters),
            workers: &listeners.workers,
            sessions: sessions.clone(),
            kernel: None,
            reply_path: None,
            log_level,
            config: config.clone(),
            history: history.clone(),
        };
        serve_proxy(sockets, &setup.process.admin, running)
    };
    let admin = serve_admin(admin)?;
    let control = Control {
        args: args.clone(),
        setup,
        services,
        counters: Arc::clone(&counters),
        sessions,
        client_lists,
    };
    let running = Running {
        listeners,
        signals,
        watch: FileWatch::of_configuration(args.source.watch, files),
        config,
        upgrades: Upgrades { upgrader, admin },
        history: history.clone(),
    };
    let code = serve(control, running).await?;
    logging::totals(&counters.snapshot(), history.reloads());
    Ok(code)
}

/// Makes the tasks that workers run for a group of UDP listeners.
fn udp_tasks(
    services: &ServiceHandle<ForwardService>,
    counters: &Arc<Counters>,
    sessions: &OpenSessions,
) -> impl Fn(UdpGroup) -> UdpTasks + use<> {
    let (services, counters) = (services.clone(), Arc::clone(counters));
    let sessions = sessions.clone();
    move |group| {
        let forwarder = UdpForwarder {
            services: services.clone(),
            config: group.datagrams,
            counters: Arc::clone(&counters),
            sessions: sessions.clone(),
        };
        forwarder.worker_tasks(group.sockets)
    }
}

impl Reload for Control {
    type Plan = Setup;

    fn reader(&self) -> impl FnOnce(&mut Fingerprints) -> anyhow::Result<Setup> + Send + 'static {
        let args = self.args.clone();
        move |files| Ok(Setup::load(&args, files)?)
    }

    async fn apply(
        &mut self,
        listeners: &mut RunningListeners,
        setup: Setup,
    ) -> anyhow::Result<(String, String)> {
        setup.check_at(&OwnAddresses::read().await?)?;
        self.setup.process.check_reload(&setup.process)?;
        let change = listeners.prepare(setup.listen_plans())?;
        let services = setup.services(&change.ids);
        let client_policies = setup.client_policies(&change.bound);
        let replace = || self.services.replace(services);
        let tasks = udp_tasks(&self.services, &self.counters, &self.sessions);
        let changed = listeners.apply(change, replace, tasks).await;
        self.client_lists.replace(client_policies);
        self.setup = setup;
        Ok(changed)
    }

    fn process(&self) -> &Process {
        &self.setup.process
    }

    fn config_json(&self) -> &str {
        &self.setup.json
    }

    fn summary(&self) -> String {
        self.setup.summary()
    }
}

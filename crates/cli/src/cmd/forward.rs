//! `peername forward`: the sender of PROXY headers, for sites with a balancer that can't write them.

pub(crate) mod options;
pub(crate) mod setup;

use std::sync::Arc;

use peername_daemon::command::{Command, Ready, Running};
use peername_daemon::listeners::running::{Opened, RunningListeners, UdpTasks};
use peername_daemon::listeners::{ListenPlan, UdpGroup};
use peername_daemon::reload::Reload;
use peername_daemon::reload::client_lists::{ClientLists, OpenClients};
use peername_daemon::reload::file_watch::Fingerprints;
use peername_daemon::value::text::join;
use peername_observe::admin::history::History;
use peername_observe::admin::{AdminServer, Resources};
use peername_proxy::forward::{ForwardService, Forwarder};
use peername_proxy::telemetry::counters::Counters;
use peername_proxy::telemetry::log_totals;
use peername_proxy::udp::{OpenSessions, UdpForwarder};
use peername_server::access::client_limit::ClientLimit;
use peername_server::confinement::Needs;
use peername_server::own_addresses::OwnAddresses;
use peername_server::workers::Workers;
use peername_server::workers::services::ServiceHandle;
use peername_sys::process::caps::{CapabilitySet, keep_only};

use crate::telemetry::{ProxyHealth, Telemetry};

pub(crate) use options::Args;
use setup::Setup;

/// The running forwarder.
pub(crate) struct Control {
    args: Args,
    setup: Setup,
    services: ServiceHandle<ForwardService>,
    counters: Arc<Counters>,
    sessions: OpenSessions,
    client_lists: ClientLists,
}

impl Command for Args {
    const NAME: &'static str = "forward";

    type Setup = Setup;
    type Checked = ();
    type Privileged = ();
    type Running = Control;

    fn load(&self, files: &mut Fingerprints) -> anyhow::Result<Setup> {
        Ok(Setup::load(self, files)?)
    }

    async fn check(&self, setup: &Setup, _: &mut Fingerprints) -> anyhow::Result<()> {
        Ok(setup.check_at(&OwnAddresses::read().await?)?)
    }

    fn listen_plans(&self, setup: &Setup, (): &()) -> Vec<ListenPlan> {
        setup.listen_plans()
    }

    async fn open(&self, _: &Setup, (): (), _: &Opened) -> anyhow::Result<()> {
        // The forwarder connects from its own address, which takes no privilege.
        Ok(keep_only(CapabilitySet::empty())?)
    }

    fn needs(&self, setup: &Setup, _: &Opened) -> anyhow::Result<Needs> {
        Ok(Needs {
            removes: setup.common.process.admin.socket_files(),
            watches: self.source.may_watch() || setup.has_list_files(),
            ..Needs::default()
        })
    }

    fn watches(&self, _: &Setup) -> bool {
        self.source.watch
    }

    async fn start(self, ready: Ready<Self>) -> anyhow::Result<(Control, RunningListeners)> {
        let Ready {
            setup,
            listeners: mut opened,
            history,
            ..
        } = ready;
        let capacity = opened.divide_descriptors(&setup.common.process)?;
        let counters = Arc::<Counters>::default();
        let sessions = OpenSessions::default();
        let services = ServiceHandle::new(setup.services(&opened.sockets.ids()));
        let groups = &opened.sockets.groups;
        let workers = setup.common.process.workers();
        let forwarder = Forwarder {
            services: services.clone(),
            counters: Arc::clone(&counters),
            client_limit: Arc::new(ClientLimit::new(capacity.connections.clone())),
        };
        let udp = join(groups.iter().flat_map(|group| group.sockets.addrs()));
        let tcp = join(opened.sockets.tcp.addrs());
        let tasks = udp_tasks(&services, &counters, &sessions);
        let client_policies = setup.client_policies(&opened.sockets.bound_addresses());
        let listeners = opened.start(&Arc::new(forwarder), capacity, Vec::new(), tasks)?;
        tracing::info!(tcp, udp, upstream = setup.targets(), workers, "listening");
        let open_clients = OpenClients {
            connections: listeners.workers.connections(),
            sessions: sessions.clone(),
            is_denied: Arc::new(|entry, policy| policy.judge(entry.peer().ip()).is_err()),
        };
        let control = Control {
            args: self,
            setup,
            services,
            counters,
            sessions,
            client_lists: ClientLists::start(client_policies, open_clients, history),
        };
        Ok((control, listeners))
    }
}

impl Running for Control {
    type Health = ProxyHealth;

    fn admin_server(&self, workers: &Workers, resources: Resources) -> AdminServer<ProxyHealth> {
        let telemetry = Telemetry {
            counters: &self.counters,
            sessions: &self.sessions,
            kernel: None,
            reply_path: None,
            hosts: self.setup.common.process.admin.allowed_hosts(),
        };
        telemetry.admin_server(workers, resources)
    }

    async fn end(self, history: &History) {
        log_totals(&self.counters.snapshot(), history.reloads());
    }
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
            config: group.udp_config,
            counters: Arc::clone(&counters),
            sessions: sessions.clone(),
        };
        forwarder.worker_tasks(group.sockets)
    }
}

impl Reload for Control {
    type Setup = Setup;
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
        self.setup
            .common
            .process
            .check_reload(&setup.common.process)?;
        let change = listeners.prepare(setup.listen_plans(), &setup.common.process)?;
        let services = setup.services(&change.ids);
        let client_policies = setup.client_policies(&change.bound);
        change.listen()?;

        // Nothing fails from here on.
        let replace = || self.services.replace(services);
        let tasks = udp_tasks(&self.services, &self.counters, &self.sessions);
        let changed = listeners.apply(change, replace, tasks).await;
        self.client_lists.replace(client_policies);
        self.setup = setup;
        Ok(changed)
    }

    fn setup(&self) -> &Setup {
        &self.setup
    }
}

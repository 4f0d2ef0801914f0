//! `peername proxy`: strips the header and connects to the backend as the client.

mod control;
pub(crate) mod options;
mod privileges;
mod reload;
mod route_keeper;
pub(crate) mod setup;

use std::sync::Arc;

use anyhow::{Context, anyhow, ensure};
use peername_daemon::command::{Command, Ready, Running};
use peername_daemon::listeners::ListenPlan;
use peername_daemon::listeners::running::{Opened, RunningListeners};
use peername_daemon::reload::file_watch::Fingerprints;
use peername_kernel::data_path::DataPath;
use peername_observe::admin::history::History;
use peername_observe::admin::{AdminServer, Resources};
use peername_proxy::routes::Keeper;
use peername_proxy::telemetry::log_totals;
use peername_server::confinement::Needs;
use peername_server::own_addresses::OwnAddresses;
use peername_server::workers::Workers;
use peername_sys::Transport;
use peername_sys::netlink::{Netlink, has_ipsec_policies};

use crate::telemetry::{ProxyHealth, Telemetry};
use control::{Control, Privileged};
pub(crate) use options::Args;
use setup::Setup;

impl Command for Args {
    const NAME: &'static str = "proxy";

    type Setup = Setup;
    type Checked = ();
    type Privileged = Privileged;
    type Running = Control;

    fn upgrade_refusal(&self) -> Option<&'static str> {
        let host = &self.top.options.host;
        host.sockets_from_outside.then_some(STARTED_BY_EXEC)
    }

    fn load(&self, files: &mut Fingerprints) -> anyhow::Result<Setup> {
        Ok(Setup::load(self, files)?)
    }

    async fn check(&self, setup: &Setup, _: &mut Fingerprints) -> anyhow::Result<()> {
        Ok(setup.check_at(&OwnAddresses::read().await?)?)
    }

    fn listen_plans(&self, setup: &Setup, (): &()) -> Vec<ListenPlan> {
        setup.listen_plans()
    }

    async fn open(&self, setup: &Setup, (): (), _: &Opened) -> anyhow::Result<Privileged> {
        let marks: Vec<_> = setup.marks().into_iter().collect();
        let keeper = if setup.host.setup_routes {
            Some(Keeper::start(&setup.backends(), &marks)?)
        } else {
            None
        };
        let kernel = attach_data_path(setup).await?;
        privileges::drop_unneeded(marks.first().copied())?;
        Ok(Privileged { keeper, kernel })
    }

    fn needs(&self, setup: &Setup, _: &Opened) -> anyhow::Result<Needs> {
        Ok(Needs {
            removes: setup.common.process.admin.socket_files(),
            bpf_maps: setup.host.uses_kernel_data_path(),
            raw_packets: true,
            watches: self.source.may_watch() || setup.has_list_files(),
            ..Needs::default()
        })
    }

    fn watches(&self, _: &Setup) -> bool {
        self.source.watch
    }

    async fn start(self, ready: Ready<Self>) -> anyhow::Result<(Control, RunningListeners)> {
        privileges::warn_of_missing();
        ready.listeners.sockets.log_kernel_limits();
        for relay in ready.setup.chosen_relays() {
            tracing::info!("TCP: bytes are moved by --relay {relay}, as chosen");
        }
        if let Some(kernel) = &ready.privileged.kernel {
            log_data_path(kernel);
        }
        Control::start(self, ready).await
    }
}

impl Running for Control {
    type Health = ProxyHealth;

    fn admin_server(&self, workers: &Workers, resources: Resources) -> AdminServer<ProxyHealth> {
        let telemetry = Telemetry {
            counters: &self.shared.counters,
            sessions: &self.shared.sessions,
            kernel: self.shared.kernel.as_ref(),
            reply_path: Some(self.reply_path.subscribe()),
            hosts: self.setup.common.process.admin.allowed_hosts(),
        };
        telemetry.admin_server(workers, resources)
    }

    fn failure(&mut self) -> impl Future<Output = anyhow::Error> + use<> {
        let reply_path = self.reply_path.subscribe();
        let lost = route_keeper::wait_lost(self.keeper_reports.take(), reply_path);
        async move {
            lost.await;
            anyhow!(route_keeper::KEEPER_LOST)
        }
    }

    async fn end(self, history: &History) {
        log_totals(&self.shared.counters.snapshot(), history.reloads());
    }
}

/// Attaches the kernel data path, if it is requested.
async fn attach_data_path(setup: &Setup) -> anyhow::Result<Option<Arc<DataPath>>> {
    if !setup.host.uses_kernel_data_path() {
        return Ok(None);
    }
    ensure!(
        setup.all_listeners().any(|key| key.0 == Transport::Udp),
        "--data-path kernel is for UDP, and no listener has --protocol udp or both"
    );
    // Checked first: what follows changes the host's configuration.
    let has_policies = has_ipsec_policies().context(
        "looking for IPsec policies, for --data-path kernel, which needs CAP_BPF and CAP_NET_ADMIN at the start",
    )?;
    ensure!(
        !has_policies,
        "this host has IPsec policies (`ip xfrm policy`), which --data-path kernel would go past"
    );
    let devices = Netlink::open()?.ethernet_interfaces().await?;
    let kernel = DataPath::attach(&devices, MAX_OFFLOADED_SESSIONS)?;
    Ok(Some(Arc::new(kernel)))
}

fn log_data_path(kernel: &DataPath) {
    tracing::info!("steady UDP sessions are left to the kernel");
    if kernel.is_reverse_path_filtered() {
        tracing::warn!(
            "net.ipv4.conf.all.rp_filter is not 0: IPv4 sessions from other hosts are not offloaded while it is set"
        );
    }
}

const STARTED_BY_EXEC: &str = "`peername exec` has started this process: restart that";

/// Maximum of sessions that are offloaded to the kernel; others stay in user space. Memory is allocated as needed, less than
/// 1 KiB for each.
const MAX_OFFLOADED_SESSIONS: u32 = 65_536;

//! `peername proxy`: strips the header and connects to the backend as the client.

pub(crate) mod clients;
mod control;
mod destination;
pub(crate) mod header_policy;
mod load;
pub(crate) mod options;
mod privileges;
mod reload;
mod route_keeper;
pub(crate) mod setup;
pub(crate) mod udp;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use peername_kernel::data_path::DataPath;
use peername_observe::admin::ConfigInForce;
use peername_proxy::routes::Keeper;
use peername_relay::check_uring;
use peername_server::confinement::Needs;
use peername_server::listeners::InheritedSockets;
use peername_server::own_addresses::OwnAddresses;
use peername_sys::ipc::listen_fds;
use peername_sys::netlink::{Netlink, Transport, has_ipsec_policies};

pub(crate) use options::Args;

use crate::admin::{ServedProxy, serve_proxy};
use crate::lifecycle::{self, Signals};
use crate::listeners::running::Opened;
use crate::logging;
use crate::reload::file_watch::{FileWatch, Fingerprints};
use crate::reload::{Running, Source, serve};
use crate::upgrade::{self, Inherited, Predecessor, Upgrader, Upgrades};
use control::Control;
use setup::Setup;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (upgrader, previous) = match args.host.sockets_from_outside {
        true => (Upgrader::unavailable(STARTED_BY_EXEC), None),
        false => upgrade::begin("proxy")?,
    };
    let mut files = Fingerprints::default();
    let setup = load::load(args, &mut files)?;
    lifecycle::block_on(start(args, setup, files, upgrader, previous))
}

/// Opens what needs privilege, drops the privilege, then serves until a signal stops it.
///
/// Capabilities belong to threads, so the threads of the log and of the workers are started after they are dropped.
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
    let mut keeper = match setup.host.setup_routes {
        true => {
            let marks: Vec<_> = setup.marks().into_iter().collect();
            Some(Keeper::start(&setup.backends(), &marks)?)
        }
        false => None,
    };
    let kernel = kernel(&setup).await?;
    privileges::drop_unneeded(setup.mark())?;
    let confinement = setup.process.sandbox.confine(needs(&setup, &args.source))?;
    let (_log, log_level) = setup.process.logging.start();
    inherited.set_log_level(&log_level);
    confinement.log();
    privileges::warn_of_missing();
    open.sockets.log_kernel_limits();
    if setup.chooses_relay() {
        log_relay_method();
    }
    for relay in setup.chosen_relays() {
        tracing::info!("TCP: bytes are moved by --relay {relay}, as chosen");
    }
    let history = inherited.history();
    let start = Control::start(args.clone(), setup, open, kernel, &history);
    let (control, listeners) = start.await?;
    let config = ConfigInForce::new(&control.setup.json);
    let serve_admin = |sockets| {
        let reply_path = control.reply_path.subscribe();
        let args = &control.setup.process.admin;
        let running = ServedProxy {
            command: "proxy",
            counters: Arc::clone(&control.shared.counters),
            workers: &listeners.workers,
            sessions: control.shared.sessions.clone(),
            kernel: control.shared.kernel.clone(),
            reply_path: Some(reply_path),
            log_level,
            config: config.clone(),
            history: history.clone(),
        };
        serve_proxy(sockets, args, running)
    };
    let admin = serve_admin(admin)?;
    let routes_lost = route_keeper::wait_lost(keeper.as_mut(), control.reply_path.subscribe())?;
    let counters = Arc::clone(&control.shared.counters);
    let running = Running {
        listeners,
        signals,
        watch: FileWatch::of_configuration(args.source.watch, files),
        config,
        upgrades: Upgrades { upgrader, admin },
        history: history.clone(),
    };
    tokio::select! {
        code = serve(control, running) => {
            let code = code?;
            logging::totals(&counters.snapshot(), history.reloads());
            Ok(code)
        }
        () = routes_lost => bail!(route_keeper::KEEPER_LOST),
    }
}

/// What this process needs after its start.
fn needs(setup: &Setup, source: &Source) -> Needs {
    Needs {
        removes: setup.process.admin.socket_files(),
        io_uring: setup.may_use_uring(),
        bpf_maps: setup.host.is_in_kernel(),
        raw_packets: true,
        watches: source.may_watch() || setup.has_list_files(),
        ..Needs::default()
    }
}

/// The relay method that `--relay auto` selects on this host.
fn log_relay_method() {
    match check_uring() {
        Ok(()) => tracing::info!("TCP: messages are received by io_uring, bulk is spliced"),
        Err(error) => tracing::info!(
            %error,
            "TCP: bulk is spliced; without io_uring messages cost a little more CPU time"
        ),
    }
}

/// Loads the data path in the kernel, if it is requested and there are UDP listeners for it.
async fn kernel(setup: &Setup) -> anyhow::Result<Option<Arc<DataPath>>> {
    if !setup.host.is_in_kernel() {
        return Ok(None);
    }
    ensure!(
        setup.listen(Transport::Udp).next().is_some(),
        "--data-path kernel is for UDP, and no listener has --protocol udp or both"
    );
    // Before the host's configuration is changed.
    let has_policies = has_ipsec_policies().context(
        "looking for IPsec policies, for --data-path kernel, which needs CAP_BPF and CAP_NET_ADMIN at the start",
    )?;
    ensure!(
        !has_policies,
        "this host has IPsec policies (`ip xfrm policy`), which --data-path kernel would go past"
    );
    let devices = Netlink::open()?.ethernet_interfaces().await?;
    let kernel = DataPath::attach(&devices, MAX_OFFLOADED_SESSIONS)?;
    tracing::info!(
        devices = devices.join(", "),
        "steady UDP sessions are left to the kernel"
    );
    if kernel.is_filtered() {
        tracing::warn!(
            "net.ipv4.conf.all.rp_filter is not 0: what comes over IPv4 from other hosts stays in user space for as long"
        );
    }
    Ok(Some(Arc::new(kernel)))
}

const STARTED_BY_EXEC: &str = "`peername exec` has started this process: restart it";

/// The maximum of sessions that are offloaded to the kernel; others stay in user space. Memory is allocated as needed, less
/// than 1 KiB for each.
const MAX_OFFLOADED_SESSIONS: u32 = 65_536;

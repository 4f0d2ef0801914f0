//! `peername proxy`: strips the header and connects to the backend as the client.

mod control;
mod destination;
pub(crate) mod file;
mod open;
pub(crate) mod options;
mod privileges;
mod reload;
mod routes;
mod setup;
pub(crate) mod udp;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use peername_proxy::listeners::Given;
use peername_proxy::own_addresses::OwnAddresses;
use peername_proxy::routes::Keeper;
use peername_sys::inherited;
use peername_sys::netlink::Transport;

pub(crate) use options::Args;

use crate::lifecycle::{self, Signals, Told};
use crate::{logging, manager};
use control::Control;
use open::{Numbers, Open};
use setup::{Setup, TRANSPORTS};

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let setup = Setup::read(args)?;
    lifecycle::block_on(start(args, setup))
}

/// Opens what needs privilege, gives the privilege up, then serves until told to stop.
///
/// Capabilities belong to threads, so the log's and the workers' come after they are given up.
async fn start(args: &Args, setup: Setup) -> anyhow::Result<ExitCode> {
    let signals = Signals::listen_for_reloads()?;
    setup.check_at(&OwnAddresses::read().await?)?;
    let tcp_too = setup.listen(Transport::Tcp).next().is_some();
    let sockets: usize = setup
        .services
        .iter()
        .map(|s| s.tcp.len() + s.udp.len())
        .sum();
    lifecycle::require_descriptors(setup.process.workers(), sockets * setup.process.workers())?;
    let for_udp = lifecycle::descriptors_of_sessions(setup.process.workers(), tcp_too)?;
    let given = given(&setup)?;
    let mut ids = 0..;
    let open = Open::missing(&setup, &Numbers::new(), for_udp, &given, &mut ids)?;
    let mut keeper = match setup.process.setup_routes {
        true => Some(Keeper::start(&setup.backends())?),
        false => None,
    };
    privileges::reduce(setup.mark())?;
    let _log = setup.process.logging.start();
    privileges::warn_of_missing();
    open.tell_of_shortcomings();
    let control = Control::start(setup, open, given, ids).await?;
    let probes = control.setup.probes().collect();
    let routes_lost = routes::lost(keeper.as_mut(), probes, control.reply_path.subscribe())?;
    tokio::select! {
        code = serve(args, control, signals) => code,
        () = routes_lost => bail!(routes::LOST),
    }
}

/// The sockets that a service manager has opened.
fn given(setup: &Setup) -> anyhow::Result<Given> {
    let given = Given::new(inherited::take()?);
    require_all_wanted(&given, setup)?;
    Ok(given)
}

/// A socket of the manager's that nobody accepts from would swallow its clients.
fn require_all_wanted(given: &Given, setup: &Setup) -> anyhow::Result<()> {
    let [tcp, udp] = TRANSPORTS.map(|transport| setup.listen(transport).collect::<Vec<_>>());
    if let Some(unwanted) = given.unwanted(&tcp, &udp) {
        let protocol = if unwanted.is_stream { "TCP" } else { "UDP" };
        bail!(
            "the service manager passed socket {} for {protocol} {}, which is not listened on: name it \
             (--listen, or address in the file), or take it out of the .socket unit",
            unwanted.what,
            unwanted.addr
        );
    }
    Ok(())
}

/// Serves on the workers' threads; this thread keeps watch.
async fn serve(
    args: &Args,
    mut control: Control,
    mut signals: Signals,
) -> anyhow::Result<ExitCode> {
    manager::ready(&control.setup.summary());
    manager::keep_alive(control.running.pulse());
    while signals.next(&mut control.running).await? == Told::Reload {
        control.reload(args).await;
    }
    let counters = Arc::clone(&control.shared.counters);
    let drain = control.setup.process.drain();
    manager::stopping();
    let code = signals.stop(control.running, drain).await;
    logging::totals(&counters.snapshot());
    Ok(code)
}

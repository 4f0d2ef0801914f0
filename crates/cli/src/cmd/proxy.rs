//! `peername proxy`: strips the header and connects to the backend as the client.

mod control;
mod open;
mod options;
mod privileges;
mod setup;
pub(crate) mod udp;

use std::process::ExitCode;
use std::sync::Arc;

use peername_proxy::routes::Keeper;

pub(crate) use options::Args;

use crate::lifecycle::{self, Signals};
use crate::logging;
use control::Control;
use open::Open;
use setup::Setup;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let setup = Setup::read(args)?;
    lifecycle::block_on(start(setup))
}

/// Opens what needs privilege, gives the privilege up, then serves until told to stop.
///
/// Capabilities belong to threads, so the log's and the workers' come after they are given up.
async fn start(setup: Setup) -> anyhow::Result<ExitCode> {
    let signals = Signals::listen()?;
    let open = Open::all(&setup)?;
    let _keeper = match setup.process.setup_routes {
        true => Some(Keeper::start(&setup.backends())?),
        false => None,
    };
    privileges::reduce(setup.mark())?;
    let _log = setup.process.logging.start();
    privileges::warn_of_missing();
    open.tell_of_shortcomings();
    serve(setup, open, signals).await
}

/// Serves on the workers' threads; this thread keeps watch.
async fn serve(setup: Setup, open: Open, signals: Signals) -> anyhow::Result<ExitCode> {
    let control = Control::start(setup, open).await?;
    let counters = Arc::clone(&control.shared.counters);
    let code = signals
        .serve(control.running, control.setup.process.drain())
        .await;
    logging::totals(&counters.snapshot());
    code
}

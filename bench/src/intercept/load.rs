//! `intercept-load`: the generator. Opens connections through a proxy, to one host or many, and verifies every response.
//!
//! It is one thread; each client is a task that takes the next connection until all are begun. The first wrong response
//! fails the run.

use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use tokio::task::{JoinSet, LocalSet};

use crate::compare::measurement::Metric;
use crate::host::procfs::ProcessTree;
use crate::intercept::load::client::Client;
use crate::intercept::load::shared_work::SharedWork;
use crate::intercept::load::spec::{LoadShape, Route, TlsLoadSpec};
use crate::intercept::load::usage::UsageMeter;

mod client;
mod shared_work;
pub(crate) mod spec;
mod usage;

/// The arguments of `peername-bench intercept-load`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    shape: LoadShape,
    /// The proxy; directly to the origin if not given
    #[arg(long, value_name = "ADDR")]
    proxy: Option<SocketAddrV4>,
    /// The origin; requests through the proxy are for names below bench.test
    #[arg(long, value_name = "ADDR")]
    origin: SocketAddrV4,
    /// The CA that clients trust, PEM
    #[arg(long, value_name = "FILE")]
    authority: PathBuf,
    /// The origin's root CA, PEM
    #[arg(long, value_name = "FILE")]
    root: PathBuf,
    /// Also report what this process and its descendants use
    #[arg(long, value_name = "PID")]
    watch: Option<u32>,
}

/// Runs one load and prints its metrics as a JSON line.
pub(crate) fn print(args: Args) -> Result<()> {
    let spec = TlsLoadSpec {
        shape: args.shape,
        route: args.proxy.map_or(Route::Direct, Route::Proxy),
        origin: args.origin,
        authority: args.authority,
        root: args.root,
        watch: args.watch.map(ProcessTree::of),
        begin: None,
    };
    println!("{}", serde_json::to_string(&run(&spec)?)?);
    Ok(())
}

/// Warms up, applies the load and returns its metrics in the order in which they are printed.
pub(crate) fn run(spec: &TlsLoadSpec) -> Result<Vec<Metric>> {
    let proxy = match spec.route {
        Route::Proxy(address) => Some(address),
        Route::Direct | Route::Resolve => None,
    };
    for address in proxy.iter().chain([&spec.origin]) {
        let ip = address.ip();
        ensure!(
            ip.is_loopback() || ip.octets().starts_with(&[192, 0, 2]),
            "{address} is outside of 127.0.0.0/8 and 192.0.2.0/24: load stays on this machine"
        );
    }
    let shape = spec.shape;
    ensure!(
        [
            shape.requests,
            shape.hosts,
            shape.clients,
            shape.each,
            shape.streams
        ]
        .iter()
        .all(|&number| number > 0),
        "every size of the load must be positive: {shape:?}"
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, measure(spec))
}

async fn measure(spec: &TlsLoadSpec) -> Result<Vec<Metric>> {
    let client = Rc::new(Client::new(spec)?);
    let origin = Client::to_origin(spec)?;
    warm_up(&client).await?;
    let handshakes = origin.handshakes().await?;
    if let Some(begin) = spec.begin {
        begin()?;
    }
    let meter = UsageMeter::start(spec.watch)?;
    let work = Rc::new(SharedWork::new(spec.shape)?);
    let mut clients = JoinSet::new();
    for _ in 0..spec.shape.clients {
        let (client, work) = (client.clone(), work.clone());
        clients.spawn_local(async move { work.run_client(&client).await });
    }
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    let usage = meter.stop()?;
    // The query itself is a handshake, too.
    let handshakes = origin.handshakes().await?.saturating_sub(handshakes + 1);
    Ok(work.metrics(spec, usage, handshakes))
}

/// Opens a few connections, so that one-time initialization is not measured.
async fn warm_up(client: &Client) -> Result<()> {
    for _ in 0..WARM_UP_CONNECTIONS {
        let mut session = client.open("warm-up").await.context("warming up")?;
        session.request().await.context("warming up")?;
    }
    Ok(())
}

/// Connections before the measured interval.
const WARM_UP_CONNECTIONS: usize = 8;

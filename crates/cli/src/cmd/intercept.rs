//! `peername intercept`: opens TLS, asks, and passes on or refuses.

mod options;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use peername_intercept::admin::InterceptHealth;
use peername_intercept::ca::Authority;
use peername_intercept::policy::destination::Destinations;
use peername_intercept::listener::{Door, Intercept};
use peername_intercept::ca::mint::{self, Mint};
use peername_intercept::state::{Renewal, Site};
use peername_intercept::upstream::{TrustError, Upstream};
use peername_observe::admin::{AdminListener, AdminServer};
use peername_server::listeners::{
    ExistingListeners, InheritedSockets, ListenerId, Listeners, number_listeners, open_single,
};
use peername_server::own_addresses::OwnAddresses;
use peername_server::workers::{self, Capacity};
use peername_sys::process::caps::{Capability, is_effective, keep_only};
use peername_sys::process::core_dump;
use prometheus_client::registry::Registry;

pub(crate) use options::Args;

use crate::lifecycle::{self, Signals, Told};
use crate::usage::Usage;
use crate::{logging, manager};

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    lifecycle::block_on(start(args))
}

async fn start(args: &Args) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen()?;
    // Before the key is read.
    core_dump::disable()?;
    let (access, check) = (args.access()?, args.check()?);
    let ca = args.ca.path()?;
    let authority = Authority::open(&ca)?;
    let own = OwnAddresses::read().await?;
    let (listeners, doors) = open(args)?;
    let admin = args
        .admin
        .map(|addr| open_single(addr).map(AdminListener::Tcp))
        .transpose()?;
    keep_only(&[])?;
    let _log = args.logging.start();
    let mut listening: Vec<_> = listeners.addrs().iter().map(SocketAddr::port).collect();
    listening.extend(args.admin.map(|admin| admin.port()));
    let destinations = Destinations {
        allowed: args.allow_destination.clone(),
        own: own.clone(),
        listening,
    };
    let workers = args.workers();
    let (capacity, most) = split(lifecycle::capacity(workers, COMPANIONS, 0)?);
    let upstream = Upstream::new(args.upstream(most), destinations, &authority.certificates());
    let upstream = upstream.map_err(|error| match error {
        TrustError::ExtraCa { .. } => anyhow::Error::new(Usage::from_error(error)),
        error => error.into(),
    })?;
    let mint = Mint::with(
        authority,
        mint::Settings {
            capacity: CERTIFICATES,
            per_client: args.certificates_per_client(),
            ..mint::Settings::default()
        },
    )?;
    tell(args, &ca, &listeners, check.is_some());
    if let Some(check) = check.clone() {
        tokio::spawn(check.await_service());
    }
    let site = Arc::new(Site::new(
        access,
        args.rules(),
        mint,
        upstream,
        check,
        capacity.connections,
    ));
    let intercept = Arc::new(Intercept::new(Arc::clone(&site), doors));
    let beside = vec![intercept.worker_tasks(workers)];
    let mut running = workers::start(listeners, beside, &intercept, capacity)
        .context("starting a worker thread")?;
    tokio::spawn(lifecycle::keep_own_addresses(own));
    if let Some(admin) = admin {
        let mut registry = Registry::default();
        site.register(&mut registry);
        let health = InterceptHealth::new(Arc::clone(&site), running.liveness());
        tokio::spawn(AdminServer::new(registry, health, args.admin_hosts()).serve(admin));
    }
    manager::ready("intercepting");
    manager::keep_alive(running.liveness());
    while signals.next(&mut running).await? == Told::Reload {
        manager::reloading();
        let reading = read_again(args.clone(), ca.clone(), Arc::clone(&site));
        let Some(read) = signals.unless_stopped(&mut running, reading).await? else {
            break;
        };
        match read {
            Ok(renewal) => {
                site.renew(renewal);
                tracing::info!("reloaded: authority, trusted roots, access lists");
            }
            Err(error) => tracing::warn!("reload refused, all stays as it was: {error:#}"),
        }
        manager::ready("intercepting");
    }
    manager::stopping();
    Ok(signals.stop(running, args.drain()).await)
}

/// What stands in files: whole, or not at all.
async fn read_again(args: Args, ca: PathBuf, site: Arc<Site>) -> anyhow::Result<Renewal> {
    lifecycle::read_again(move || Ok(site.prepare(args.access()?, Authority::open(&ca)?)?)).await
}

/// What clients may have of the descriptors, and how many connections to origins there may be. A client by HTTP/2
/// may need many of these, so that each sort has its own: two fifths. The rest is for questions and lookups.
fn split(capacity: Capacity) -> (Capacity, usize) {
    let connections = (capacity.connections * 4 / 5).max(1);
    let of_clients = Capacity {
        connections,
        ..capacity
    };
    (of_clients, connections)
}

type Doors = Vec<(ListenerId, Door)>;

fn open(args: &Args) -> anyhow::Result<(Listeners, Doors)> {
    let (explicit, transparent) = args.doors();
    let workers = args.workers();
    let sockets = (explicit.len() + transparent.len()) * workers;
    lifecycle::require_descriptors(workers, sockets)?;
    let explicit: Vec<_> = number_listeners(0, &explicit).collect();
    let first = u32::try_from(explicit.len())?;
    let transparent: Vec<_> = number_listeners(first, transparent).collect();
    let all = [explicit.as_slice(), &transparent].concat();
    let mut listeners = Listeners::open(
        &all,
        &ExistingListeners::default(),
        workers,
        &InheritedSockets::default(),
    )?;
    // TPROXY needs it, REDIRECT does not.
    if is_effective(Capability::CAP_NET_RAW) || is_effective(Capability::CAP_NET_ADMIN) {
        listeners =
            listeners.with_transparent(|id| transparent.iter().any(|(one, _)| *one == id))?;
    }
    let doors = [(explicit, Door::Explicit), (transparent, Door::Transparent)]
        .into_iter()
        .flat_map(|(all, door)| all.into_iter().map(move |(id, _)| (id, door)))
        .collect();
    Ok((listeners, doors))
}

fn tell(args: &Args, ca: &Path, listeners: &Listeners, is_checked: bool) {
    match (is_checked, args.goes_on_unchecked()) {
        (false, _) => {
            tracing::warn!("no --check: every request is allowed, but for its destination");
        }
        (true, true) => {
            tracing::warn!("requests go on unchecked whenever the check service fails");
        }
        (true, false) => {}
    }
    tracing::info!(
        tcp = logging::join(listeners.addrs()),
        ca = %ca.display(),
        workers = args.workers(),
        "listening"
    );
}

/// Of each worker: what it does beside its connections.
const COMPANIONS: usize = 1;
/// Of a kilobyte or two each.
const CERTIFICATES: u64 = 32_768;

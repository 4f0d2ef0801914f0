//! `peername intercept`: terminates TLS, checks each request, and forwards or refuses it.

mod options;

use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use peername_intercept::admin::InterceptHealth;
use peername_intercept::ca::Authority;
use peername_intercept::ca::mint::Mint;
use peername_intercept::ca::mint::config::MintConfig;
use peername_intercept::listener::{Intercept, ListenerKind};
use peername_intercept::policy::destination::Destinations;
use peername_intercept::state::{InterceptState, Reload};
use peername_intercept::upstream::Upstream;
use peername_intercept::upstream::trust::TrustError;
use peername_observe::admin::{AdminServer, Resources};
use peername_server::confinement::Needs;
use peername_server::listeners::{
    ExistingListeners, InheritedSockets, ListenerId, Listeners, number_listeners,
};
use peername_server::own_addresses::OwnAddresses;
use peername_server::workers::{self, Capacity};
use peername_sys::process::caps::{CapabilitySet, is_effective, keep_only};
use peername_sys::process::core_dump;
use prometheus_client::registry::Registry;

pub(crate) use options::Args;

use crate::lifecycle::{self, SignalEvent, Signals};
use crate::usage::Usage;
use crate::{logging, service_manager};

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    lifecycle::block_on(start(args))
}

async fn start(args: &Args) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen()?;
    // Before the authority's key is read.
    core_dump::disable()?;
    let (access, check) = (args.access()?, args.check()?);
    let ca = args.ca.path()?;
    let authority = Authority::open(&ca)?;
    let own = OwnAddresses::read().await?;
    let (listeners, kinds) = open(args)?;
    let admin = args.admin.open()?;
    keep_only(CapabilitySet::empty())?;
    let mut listening: Vec<_> = listeners.addrs().iter().map(SocketAddr::port).collect();
    listening.extend(args.admin.port());
    let destinations = Destinations {
        allowed: args.allow_destination.clone(),
        own: own.clone(),
        listening,
    };
    let workers = args.workers();
    let (capacity, max_upstream) =
        split_capacity(lifecycle::capacity(workers, TASKS_PER_WORKER, 0)?);
    let upstream = Upstream::new(
        args.upstream(max_upstream),
        destinations,
        &authority.certificates(),
    );
    let upstream = upstream.map_err(|error| match error {
        TrustError::ExtraCa { .. } => anyhow::Error::new(Usage::from_error(error)),
        error => error.into(),
    })?;
    let mint = Mint::with_config(
        authority,
        MintConfig {
            capacity: MAX_CERTIFICATES,
            per_client: args.certificates_per_client(),
            ..MintConfig::default()
        },
    )?;
    let confinement = args.sandbox.confine(needs(args, &ca))?;
    let (_log, log_level) = args.logging.start();
    confinement.log();
    log_start(args, &ca, &listeners, check.is_some());
    if let Some(check) = check.clone() {
        tokio::spawn(check.await_service());
    }
    let state = Arc::new(InterceptState::new(
        access,
        args.rules(),
        mint,
        upstream,
        check,
        capacity.connections,
    ));
    let intercept = Arc::new(Intercept::new(Arc::clone(&state), kinds));
    let beside = vec![intercept.worker_tasks(workers)];
    let mut running = workers::start(listeners, beside, &intercept, capacity)
        .context("starting a worker thread")?;
    tokio::spawn(lifecycle::watch_own_addresses(own));
    if let Some(admin) = admin {
        let mut registry = Registry::default();
        state.register(&mut registry);
        let health = InterceptHealth::new(Arc::clone(&state), running.liveness());
        let hosts = args.admin.allowed_hosts();
        let resources = Resources {
            log_level: Some(Box::new(log_level)),
            ..Resources::default()
        };
        let server = AdminServer::new(registry, health, hosts, resources);
        tokio::spawn(server.serve(admin));
    }
    service_manager::ready("intercepting");
    service_manager::keep_alive(running.liveness());
    while signals.next(&mut running).await? == SignalEvent::Reload {
        service_manager::reloading();
        let reading = read_files(args.clone(), ca.clone(), Arc::clone(&state));
        let Some(read) = signals.run_until_stopped(&mut running, reading).await? else {
            break;
        };
        match read {
            Ok(reload) => {
                state.apply(reload);
                tracing::info!("reloaded: authority, trusted roots, access lists");
            }
            Err(error) => tracing::warn!("reload refused, all stays as it was: {error:#}"),
        }
        service_manager::ready("intercepting");
    }
    service_manager::stopping();
    Ok(signals.stop(running, args.drain()).await)
}

/// What this process needs after its start: the files that a reload reads again, and names of origins.
fn needs(args: &Args, ca: &Path) -> Needs {
    let roots = TRUST_ROOTS.iter().map(PathBuf::from);
    let configured = env::var_os("SSL_CERT_DIR").unwrap_or_default();
    let configured = env::split_paths(&configured);
    Needs {
        files: env::var_os("SSL_CERT_FILE")
            .map(PathBuf::from)
            .into_iter()
            .collect(),
        directories: roots.chain(configured).chain([ca.to_owned()]).collect(),
        removes: args.admin.socket_file(),
        names: true,
        ..Needs::default()
    }
}

/// Reads all files again: either all of them are valid, or the reload is refused.
async fn read_files(args: Args, ca: PathBuf, state: Arc<InterceptState>) -> anyhow::Result<Reload> {
    lifecycle::reread(move || Ok(state.prepare_reload(args.access()?, Authority::open(&ca)?)?))
        .await
}

/// Splits the descriptors: two fifths for connections of clients, two fifths for connections to origins. Each kind has its
/// own limit because one HTTP/2 client may need many connections to origins. The rest is for checks and DNS lookups.
fn split_capacity(capacity: Capacity) -> (Capacity, usize) {
    let connections = (capacity.connections * 4 / 5).max(1);
    let client_capacity = Capacity {
        connections,
        ..capacity
    };
    (client_capacity, connections)
}

type ListenerKinds = Vec<(ListenerId, ListenerKind)>;

fn open(args: &Args) -> anyhow::Result<(Listeners, ListenerKinds)> {
    let (explicit, transparent) = args.listen_addresses();
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
    // TPROXY needs a transparent socket, REDIRECT does not.
    if is_effective(CapabilitySet::NET_RAW) || is_effective(CapabilitySet::NET_ADMIN) {
        listeners =
            listeners.with_transparent(|id| transparent.iter().any(|(one, _)| *one == id))?;
    }
    let kinds = [
        (explicit, ListenerKind::Explicit),
        (transparent, ListenerKind::Transparent),
    ]
    .into_iter()
    .flat_map(|(all, kind)| all.into_iter().map(move |(id, _)| (id, kind)))
    .collect();
    Ok((listeners, kinds))
}

fn log_start(args: &Args, ca: &Path, listeners: &Listeners, is_checked: bool) {
    match (is_checked, args.fails_open()) {
        (false, _) => {
            tracing::warn!("no --check: every request is allowed, but for its destination");
        }
        (true, true) => {
            tracing::warn!("requests are forwarded unchecked whenever the check service fails");
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

/// Where distributions keep trusted roots, and what those in /etc link to.
const TRUST_ROOTS: [&str; 6] = [
    "/etc",
    "/opt/etc/ssl",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/usr/share/pki",
    "/var/lib/ca-certificates",
];
/// Tasks of each worker beside its connections.
const TASKS_PER_WORKER: usize = 1;
/// Certificates in the cache, of a kilobyte or two each.
const MAX_CERTIFICATES: u64 = 32_768;

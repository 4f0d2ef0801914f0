//! `peername intercept`: terminates TLS, checks each request, and forwards or refuses it.

mod check_args;
pub(crate) mod check_tls_args;
mod host_timeout;
pub(crate) mod jail;
pub(crate) mod options;
mod redacted;
mod reload;
mod rule_args;
mod rule_file;
pub(crate) mod setup;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use peername_intercept::admin::InterceptHealth;
use peername_intercept::admin::advice::advise;
use peername_intercept::authz::CheckService;
use peername_intercept::ca::Authority;
use peername_intercept::ca::mint::Mint;
use peername_intercept::ca::mint::config::MintConfig;
use peername_intercept::listener::{CurrentState, Intercept};
use peername_intercept::otlp::SpanExporter;
use peername_intercept::policy::destination::Destinations;
use peername_intercept::state::InterceptState;
use peername_intercept::upstream::Upstream;
use peername_intercept::upstream::trust::TrustError;
use peername_observe::admin::{AdminServer, ConfigInForce, Resources};
use peername_server::confinement::Needs;
use peername_server::listeners::InheritedSockets;
use peername_server::own_addresses::OwnAddresses;
use peername_server::workers::Capacity;
use peername_server::workers::services::ServiceHandle;
use peername_sys::ipc::listen_fds;
use peername_sys::process::caps::{CapabilitySet, is_effective, keep_only};
use peername_sys::process::secrets;
use prometheus_client::registry::Registry;
use rustls_native_certs::{CertificateResult, load_native_certs};

pub(crate) use options::Args;

use crate::admin::RunningAdmin;
use crate::lifecycle::{self, Signals};
use crate::listeners::running::{Opened, UdpTasks};
use crate::logging;
use crate::reload::file_watch::{FileWatch, Fingerprints};
use crate::reload::{Running, serve};
use crate::upgrade::{self, Inherited, Predecessor, Upgrader, Upgrades};
use crate::usage::Usage;
use reload::Control;
use setup::Setup;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (upgrader, previous) = upgrade::begin("intercept")?;
    let mut files = Fingerprints::default();
    let setup = Setup::load(args, &mut files)?;
    lifecycle::block_on(start(args, setup, files, upgrader, previous))
}

async fn start(
    args: &Args,
    setup: Setup,
    mut files: Fingerprints,
    upgrader: Upgrader,
    mut previous: Option<Predecessor>,
) -> anyhow::Result<ExitCode> {
    let signals = Signals::listen()?;
    // Before the authority's key is read.
    secrets::disable_core_dumps()?;
    secrets::mask_arguments()?;
    let check = setup.check.clone().map(CheckService::new);
    let check = check.transpose().map_err(Usage::from_error)?;
    let authority = setup.authority(&mut files)?;
    let own = OwnAddresses::read().await?;
    let workers = setup.process.workers();
    let can_tproxy = is_effective(CapabilitySet::NET_RAW) || is_effective(CapabilitySet::NET_ADMIN);
    let mut given = InheritedSockets::new(listen_fds::receive()?);
    let inherited = Inherited::of(previous.as_ref());
    let admin = setup.process.admin.open(&mut given, previous.as_mut())?;
    let open = Opened::open(setup.listen_plans(can_tproxy), workers, given, previous)?;
    keep_only(CapabilitySet::empty())?;
    let destinations = setup.destinations(&own, &open.sockets.actual());
    let (capacity, max_upstream) =
        split_capacity(lifecycle::capacity(workers, TASKS_PER_WORKER, 0)?);
    let limits = (capacity.connections, max_upstream);
    let exporter = setup.start_exporter()?;
    let state = new_state(
        &setup,
        authority,
        &load_native_certs(),
        destinations,
        check.clone(),
        limits,
    )?;
    let state = Arc::new(state.with_spans(exporter.as_ref().map(SpanExporter::queue)));
    // A policy is to be in force as soon as its file is changed.
    let watches = args.source.watch || setup.options.check.policies().next().is_some();
    let confinement = setup.process.sandbox.confine(needs(&setup, watches)?)?;
    let (_log, log_level) = setup.process.logging.start();
    inherited.set_log_level(&log_level);
    confinement.log();
    log_start(&setup, &logging::join(open.sockets.tcp.addrs()))?;
    if let Some(check) = check.clone() {
        check.await_services();
    }
    let services = setup.services(&open.sockets.numbers(), &state);
    let services = ServiceHandle::new(services);
    let current = CurrentState::new(Arc::clone(&state));
    let intercept = Arc::new(Intercept::new(services.clone(), current.clone()));
    let beside = intercept.worker_tasks(workers);
    let listeners = open.start(&intercept, capacity, beside, |_| UdpTasks::default())?;
    tokio::spawn(lifecycle::watch_own_addresses(own.clone()));
    let config = ConfigInForce::new(&setup.json);
    let history = inherited.history();
    let serve_admin = |sockets| {
        let mut registry = Registry::default();
        state.register(&mut registry);
        let workers = &listeners.workers;
        let health = InterceptHealth::new(current.clone(), workers.liveness(), workers.phases());
        let hosts = setup.process.admin.allowed_hosts();
        let resources = Resources {
            command: "intercept",
            advise: Some(advise),
            connections: Some(Box::new(listeners.workers.connections())),
            log_level: Some(Box::new(log_level)),
            config: Some(config.clone()),
            history: history.clone(),
            limit: Some(Arc::new(workers.limit())),
            ..Resources::default()
        };
        let server = AdminServer::new(registry, health, hosts, resources);
        RunningAdmin::serve(&setup.process.admin, sockets, server)
    };
    let admin = serve_admin(admin)?;
    let control = Control {
        args: args.clone(),
        setup,
        services,
        current,
        own,
        can_tproxy,
        max_upstream,
    };
    let running = Running {
        listeners,
        signals,
        watch: FileWatch::of_configuration(watches, files),
        config,
        upgrades: Upgrades { upgrader, admin },
        history,
    };
    let ended = serve(control, running).await;
    if let Some(exporter) = exporter {
        exporter.stop().await;
    }
    ended
}

/// What requests are served with: reads the trusted roots of origins, and makes a leaf key. `limits` are those of connections
/// of clients and to origins.
///
/// # Errors
///
/// [`Usage`] for an unusable `--extra-ca`; no trusted root; or no leaf key.
pub(crate) fn new_state(
    setup: &Setup,
    authority: Authority,
    native: &CertificateResult,
    destinations: Destinations,
    check: Option<CheckService>,
    (connections, max_upstream): (usize, usize),
) -> anyhow::Result<InterceptState> {
    let upstream = Upstream::new(
        setup.options.upstream(max_upstream),
        destinations,
        native,
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
            per_client: setup.options.certificates_per_client(),
            ..MintConfig::default()
        },
    )?;
    Ok(InterceptState::new(
        Arc::clone(&setup.lists),
        setup.options.rules(),
        mint,
        upstream,
        check,
        connections,
    ))
}

/// What this process needs after its start.
fn needs(setup: &Setup, watches: bool) -> anyhow::Result<Needs> {
    let mut needs = usual_needs(Some(setup.ca()?));
    let policies = setup.options.check.policies().map(PathBuf::from);
    needs
        .directories
        .extend(policies.filter(|path| path.is_dir()));
    Ok(Needs {
        removes: setup.process.admin.socket_files(),
        watches,
        ..needs
    })
}

/// What any `intercept` needs after its start: the files that a reload reads again, and names of origins. `ca` is the
/// directory of its authority.
pub(crate) fn usual_needs(ca: Option<PathBuf>) -> Needs {
    let roots = TRUST_ROOTS.iter().map(PathBuf::from);
    let configured = env::var_os("SSL_CERT_DIR").unwrap_or_default();
    let configured = env::split_paths(&configured);
    Needs {
        files: env::var_os("SSL_CERT_FILE")
            .map(PathBuf::from)
            .into_iter()
            .collect(),
        directories: roots.chain(configured).chain(ca).collect(),
        names: true,
        ..Needs::default()
    }
}

/// The limit of open connections of clients that a process with the default number of workers would have.
///
/// # Errors
///
/// As [`lifecycle::capacity`].
pub(crate) fn expected_connections() -> anyhow::Result<usize> {
    let capacity = lifecycle::capacity(lifecycle::default_workers(), TASKS_PER_WORKER, 0)?;
    Ok(split_capacity(capacity).0.connections)
}

/// Splits the descriptors: two fifths for connections of clients, two fifths for connections to origins. Each kind has its
/// own limit because one HTTP/2 client may need many connections to origins. The rest is for checks and DNS lookups.
pub(crate) fn split_capacity(capacity: Capacity) -> (Capacity, usize) {
    let connections = (capacity.connections * 4 / 5).max(1);
    let client_capacity = Capacity {
        connections,
        ..capacity
    };
    (client_capacity, connections)
}

fn log_start(setup: &Setup, tcp: &str) -> anyhow::Result<()> {
    setup.warn_of_exposed_secrets();
    if setup.is_unchecked() {
        tracing::warn!(
            "no --check and no --allow: every request is allowed, but for its destination"
        );
    }
    if setup.check.is_some() && setup.options.check.fails_open() {
        tracing::warn!("requests are forwarded unchecked whenever the check service fails");
    }
    tracing::info!(
        tcp,
        ca = %setup.ca()?.display(),
        workers = setup.process.workers(),
        "listening"
    );
    Ok(())
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
pub(crate) const TASKS_PER_WORKER: usize = 1;
/// Certificates in the cache, of a kilobyte or two each.
const MAX_CERTIFICATES: u64 = 32_768;

//! `peername intercept`: terminates TLS, checks each request, and forwards or refuses it.

mod admission_log;
mod check_args;
pub(crate) mod check_tls_args;
pub(crate) mod jail;
pub(crate) mod options;
mod reload;
mod rule_args;
mod rule_file;
mod rule_mistake;
pub(crate) mod setup;

use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use peername_daemon::command::{Command, Ready, Running};
use peername_daemon::descriptors;
use peername_daemon::listeners::ListenPlan;
use peername_daemon::listeners::running::{Opened, RunningListeners, UdpTasks};
use peername_daemon::logging::{AuditLog, LogFile};
use peername_daemon::process::Process;
use peername_daemon::reload::file_watch::Fingerprints;
use peername_daemon::usage::UsageError;
use peername_daemon::value::text::join;
use peername_intercept::AUDIT_TARGET;
use peername_intercept::admin::InterceptHealth;
use peername_intercept::admin::code_advice::advise;
use peername_intercept::authz::CheckService;
use peername_intercept::ca::Authority;
use peername_intercept::ca::mint::Mint;
use peername_intercept::ca::mint::config::MintConfig;
use peername_intercept::listener::{CurrentState, Intercept};
use peername_intercept::otlp::SpanExporter;
use peername_intercept::state::InterceptState;
use peername_intercept::upstream::Upstream;
use peername_intercept::upstream::config::UpstreamConfig;
use peername_intercept::upstream::trust::TrustError;
use peername_observe::admin::history::History;
use peername_observe::admin::{AdminServer, Resources};
use peername_server::access::max_connections::MaxConnections;
use peername_server::confinement::Needs;
use peername_server::own_addresses::OwnAddresses;
use peername_server::threads::start_request_threads;
use peername_server::workers::services::ServiceHandle;
use peername_server::workers::{Capacity, Workers};
use peername_sys::process::caps::{CapabilitySet, is_effective, keep_only};
use peername_sys::process::secrets;
use prometheus_client::registry::Registry;
use rustls_native_certs::{CertificateResult, load_native_certs};

use admission_log::AdmissionFile;
pub(crate) use options::Args;
use reload::Control;
pub(crate) use rule_mistake::explain_rule;
use setup::Setup;

/// The authority and the check services, which are read by now, and this host's addresses and privileges.
pub(crate) struct Checked {
    authority: Authority,
    check: Option<CheckService>,
    own_addresses: OwnAddresses,
    /// Whether listeners for TPROXY rules can be opened.
    can_tproxy: bool,
}

/// What requests are served with.
pub(crate) struct Prepared {
    state: InterceptState,
    check: Option<CheckService>,
    exporter: Option<SpanExporter>,
    /// The file of `--log`.
    log: Option<LogFile>,
    own_addresses: OwnAddresses,
    can_tproxy: bool,
    capacity: Capacity,
}

impl Command for Args {
    const NAME: &'static str = "intercept";

    type Setup = Setup;
    type Checked = Checked;
    type Privileged = Prepared;
    type Running = Control;

    fn load(&self, files: &mut Fingerprints) -> anyhow::Result<Setup> {
        Ok(Setup::load(self, files)?)
    }

    async fn check(&self, setup: &Setup, files: &mut Fingerprints) -> anyhow::Result<Checked> {
        // Before the authority's key is read.
        secrets::disable_core_dumps()?;
        secrets::mask_arguments()?;
        let check = setup.check.clone().map(CheckService::new).transpose();
        Ok(Checked {
            check: check.map_err(UsageError::from_error)?,
            authority: setup.authority(files)?,
            own_addresses: OwnAddresses::read().await?,
            can_tproxy: is_effective(CapabilitySet::NET_RAW)
                || is_effective(CapabilitySet::NET_ADMIN),
        })
    }

    fn listen_plans(&self, setup: &Setup, checked: &Checked) -> Vec<ListenPlan> {
        setup.listen_plans(checked.can_tproxy)
    }

    async fn open(
        &self,
        setup: &Setup,
        checked: Checked,
        listeners: &Opened,
    ) -> anyhow::Result<Prepared> {
        keep_only(CapabilitySet::empty())?;
        let Checked {
            authority,
            check,
            own_addresses,
            can_tproxy,
        } = checked;
        let destinations = setup.destinations(&own_addresses, &listeners.sockets.bound_addresses());
        let capacity = client_capacity(&setup.common.process)?;
        let upstream = setup
            .options
            .upstream(capacity.connections.get(), destinations);
        let exporter = setup.start_exporter()?;
        let roots = load_native_certs();
        let state = new_state(
            setup,
            authority,
            &roots,
            upstream,
            check.clone(),
            capacity.connections.clone(),
        )?;
        // Opened without the privileges of the start, because a reload does not have them either.
        let path = setup.options.log.as_deref();
        let log = setup.options.open_log()?;
        let log = log.map(|file| LogFile::new(file, path));
        Ok(Prepared {
            state: state
                .with_spans(exporter.as_ref().map(SpanExporter::queue))
                .with_admission_log(log.clone().map(AdmissionFile::shared)),
            check,
            exporter,
            log,
            own_addresses,
            can_tproxy,
            capacity,
        })
    }

    fn needs(&self, setup: &Setup, _: &Opened) -> anyhow::Result<Needs> {
        let mut needs = usual_needs(Some(setup.options.ca.path()?));
        let policies = setup.options.check.policies();
        needs
            .directories
            .extend(policies.filter(|path| path.is_dir()).map(PathBuf::from));
        Ok(Needs {
            removes: setup.common.process.admin.socket_files(),
            appends: setup.options.rotated_log().into_iter().cloned().collect(),
            watches: self.watches(setup),
            ..needs
        })
    }

    fn audit_log(&self, prepared: &Prepared) -> Option<AuditLog> {
        let file = prepared.log.clone()?;
        let target = AUDIT_TARGET;
        Some(AuditLog { target, file })
    }

    /// Policies are always watched, because a changed policy has to be in force at once.
    fn watches(&self, setup: &Setup) -> bool {
        self.source.watch || setup.options.check.policies().next().is_some()
    }

    async fn start(self, ready: Ready<Self>) -> anyhow::Result<(Control, RunningListeners)> {
        let Ready {
            setup,
            privileged: prepared,
            listeners: opened,
            ..
        } = ready;
        start_request_threads().context("starting a thread")?;
        log_start(&setup, &join(opened.sockets.tcp.addrs()))?;
        if let Some(check) = prepared.check {
            check.await_services();
        }
        let state = Arc::new(prepared.state);
        let services = ServiceHandle::new(setup.services(&opened.sockets.ids(), &state));
        let current = CurrentState::new(state);
        let intercept = Arc::new(Intercept::new(services.clone(), current.clone()));
        let tasks = intercept.worker_tasks(setup.common.process.workers());
        let max_upstream = prepared.capacity.connections.get();
        let listeners = opened.start(&intercept, prepared.capacity, tasks, |_| {
            UdpTasks::default()
        })?;
        tokio::spawn(prepared.own_addresses.clone().keep_watching());
        let control = Control {
            args: self,
            setup,
            services,
            current,
            own_addresses: prepared.own_addresses,
            can_tproxy: prepared.can_tproxy,
            max_upstream,
            exporter: prepared.exporter,
            log: prepared.log,
        };
        Ok((control, listeners))
    }
}

impl Running for Control {
    type Health = InterceptHealth;

    fn admin_server(
        &self,
        workers: &Workers,
        resources: Resources,
    ) -> AdminServer<InterceptHealth> {
        let mut registry = Registry::default();
        self.current.get().register(&mut registry);
        let current = self.current.clone();
        let health = InterceptHealth::new(current, workers.liveness(), workers.phases());
        let resources = Resources {
            advise: Some(advise),
            ..resources
        };
        let hosts = self.setup.common.process.admin.allowed_hosts();
        AdminServer::new(registry, health, hosts, resources)
    }

    async fn end(self, _: &History) {
        if let Some(exporter) = self.exporter {
            exporter.stop().await;
        }
    }
}

/// Makes the state that requests are served with, for at most `connections` client connections: reads the trusted roots of
/// origins, and makes a leaf key.
///
/// # Errors
///
/// [`UsageError`] for an unusable `--extra-ca`; no trusted root; or no leaf key.
pub(crate) fn new_state(
    setup: &Setup,
    authority: Authority,
    native: &CertificateResult,
    upstream: UpstreamConfig,
    check: Option<CheckService>,
    connections: MaxConnections,
) -> anyhow::Result<InterceptState> {
    let upstream = Upstream::new(upstream, native, &authority.certificates());
    let upstream = upstream.map_err(|error| match error {
        TrustError::ExtraCa { .. } => anyhow::Error::new(UsageError::from_error(error)),
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
        setup.options.client_connections(),
        mint,
        upstream,
        check,
        connections,
    ))
}

/// What an interceptor, also that of a jail, needs after its start: files with trusted roots, the directory `ca` of its
/// authority, and name resolution.
pub(crate) fn usual_needs(ca: Option<PathBuf>) -> Needs {
    let configured = env::var_os("SSL_CERT_DIR").unwrap_or_default();
    let directories = TRUST_ROOTS
        .iter()
        .map(PathBuf::from)
        .chain(env::split_paths(&configured))
        .chain(ca)
        .collect();
    Needs {
        files: env::var_os("SSL_CERT_FILE")
            .map(PathBuf::from)
            .into_iter()
            .collect(),
        directories,
        resolves_names: true,
        ..Needs::default()
    }
}

/// Raises the limit of descriptors, and reduces the number of client connections to four fifths of what it allows: the rest is
/// for checks and DNS lookups. [`descriptors::capacity`] counts two descriptors for each, and the second is for a connection to
/// an origin. Connections from clients and connections to origins are limited separately, each to this number, because one
/// HTTP/2 client may need many connections to origins.
pub(crate) fn client_capacity(process: &Process) -> anyhow::Result<Capacity> {
    let capacity = descriptors::capacity(process, TASKS_PER_WORKER, 0)?;
    Ok(Capacity {
        connections: MaxConnections::new((capacity.connections.get() * 4 / 5).max(1)),
        ..capacity
    })
}

fn log_start(setup: &Setup, tcp: &str) -> anyhow::Result<()> {
    setup.warn_of_options();
    setup.warn_of_openness();
    tracing::info!(
        tcp,
        ca = %setup.options.ca.path()?.display(),
        workers = setup.common.process.workers(),
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
const TASKS_PER_WORKER: usize = 1;
/// Certificates in the cache, of a kilobyte or two each.
const MAX_CERTIFICATES: u64 = 32_768;

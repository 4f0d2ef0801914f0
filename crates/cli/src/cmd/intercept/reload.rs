//! Reloads of `peername intercept`: a new state serves the connections that are accepted afterwards.

use std::sync::Arc;

use anyhow::ensure;
use peername_daemon::listeners::running::{RunningListeners, UdpTasks};
use peername_daemon::logging::LogFile;
use peername_daemon::reload::Reload;
use peername_daemon::reload::file_watch::Fingerprints;
use peername_intercept::listener::{CurrentState, ListenerService};
use peername_intercept::otlp::SpanExporter;
use peername_intercept::state;
use peername_server::own_addresses::OwnAddresses;
use peername_server::workers::services::ServiceHandle;

use super::options::Args;
use super::setup::Setup;

/// The running proxy.
pub(crate) struct Control {
    pub(super) args: Args,
    pub(super) setup: Setup,
    pub(super) services: ServiceHandle<ListenerService>,
    pub(super) current: CurrentState,
    pub(super) own_addresses: OwnAddresses,
    /// Whether listeners for TPROXY rules could be opened at the start.
    pub(super) can_tproxy: bool,
    pub(super) max_upstream: usize,
    pub(super) exporter: Option<SpanExporter>,
    /// The file of `--log`.
    pub(super) log: Option<LogFile>,
}

/// A new configuration, and what was read for it: lists, the authority and trusted roots.
pub(crate) struct Plan {
    setup: Setup,
    prepared: state::Reload,
}

impl Reload for Control {
    type Setup = Setup;
    type Plan = Plan;

    fn reader(&self) -> impl FnOnce(&mut Fingerprints) -> anyhow::Result<Plan> + Send + 'static {
        let (args, state) = (self.args.clone(), self.current.get());
        move |files| {
            let setup = Setup::load(&args, files)?;
            let authority = setup.authority(files)?;
            let (lists, extra_ca) = (Arc::clone(&setup.lists), &setup.options.extra_ca);
            let prepared = state.prepare_reload(lists, authority, extra_ca)?;
            Ok(Plan { setup, prepared })
        }
    }

    async fn apply(
        &mut self,
        listeners: &mut RunningListeners,
        Plan { setup, prepared }: Plan,
    ) -> anyhow::Result<(String, String)> {
        let state = self.current.get();
        self.setup
            .common
            .process
            .check_reload(&setup.common.process)?;
        ensure!(
            setup.options.certificates_per_client() == self.setup.options.certificates_per_client(),
            "certificates-per-client can't change without a restart or an upgrade"
        );
        ensure!(
            setup.options.otlp == self.setup.options.otlp,
            "otlp can't change without a restart or an upgrade"
        );
        ensure!(
            setup.options.log == self.setup.options.log,
            "log can't change without a restart or an upgrade"
        );
        let check = state.next_check(setup.check.clone())?;
        let change =
            listeners.prepare(setup.listen_plans(self.can_tproxy), &setup.common.process)?;
        let destinations = setup.destinations(&self.own_addresses, &change.bound);
        let upstream = setup.options.upstream(self.max_upstream, destinations);
        // A file that was moved away by a rotation is created again; a device or a pipe stays open.
        let log = match setup.options.log.as_deref() {
            Some(path) if path.is_file() || path.is_dir() || !path.exists() => {
                setup.options.open_log()?
            }
            _ => None,
        };
        change.listen()?;

        // Nothing fails from here on.
        if let (Some(current), Some(file)) = (&self.log, log) {
            current.replace(file);
            tracing::info!("the file of --log was opened again");
        }
        let config = setup.options.client_connections();
        let state = Arc::new(state.successor(prepared, config, upstream, check));
        let services = setup.services(&change.ids, &state);
        let replace = || {
            self.services.replace(services);
            self.current.replace(state);
        };
        let udp_tasks = |_| UdpTasks::default();
        let changed = listeners.apply(change, replace, udp_tasks).await;
        self.setup = setup;
        self.setup.warn_of_options();
        self.setup.warn_of_openness();
        Ok(changed)
    }

    fn setup(&self) -> &Setup {
        &self.setup
    }
}

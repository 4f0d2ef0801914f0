//! Reloads of the proxy: services and listeners are replaced, and open connections and sessions keep the configuration they
//! began with.

use std::sync::Arc;

use anyhow::{Context, Error, bail};
use peername_daemon::listeners::running::RunningListeners;
use peername_daemon::process::refuse_changes;
use peername_daemon::reload::Reload;
use peername_daemon::reload::file_watch::Fingerprints;
use peername_proxy::reply_path::probe::{ProbeOutcome, probe};
use peername_proxy::routes::{self, Backend};
use peername_server::own_addresses::OwnAddresses;

use super::control::Control;
use super::privileges;
use super::setup::Setup;

impl Reload for Control {
    type Setup = Setup;
    type Plan = Setup;

    fn reader(&self) -> impl FnOnce(&mut Fingerprints) -> anyhow::Result<Setup> + Send + 'static {
        let args = self.args.clone();
        move |files| Ok(Setup::load(&args, files)?)
    }

    async fn apply(
        &mut self,
        listeners: &mut RunningListeners,
        setup: Setup,
    ) -> anyhow::Result<(String, String)> {
        setup.check_at(&OwnAddresses::read().await?)?;
        self.refuse_what_needs_a_restart(&setup).await?;
        let reply_path = Arc::clone(&self.reply_path.borrow());
        let probes = setup.probes().map(|mut target| {
            target.is_kept &= self.has_rules_of_the_start(target.backend);
            target
        });
        let reply_path = Arc::new(reply_path.retarget(probes).await);
        // After the probes, which take time: until the change is applied, new UDP listeners only queue datagrams.
        let change = listeners.prepare(setup.listen_plans(), &setup.common.process)?;
        let shared = &self.shared;
        let services = shared.services(&setup, &change.ids, &change.bound, &reply_path)?;
        let client_policies = setup.client_policies(&change.bound);
        change.listen()?;

        // Nothing fails from here on.
        let replace = || {
            self.services.replace(services);
            if let Some(kernel) = &shared.kernel {
                kernel.evict_all();
            }
        };
        let tasks = shared.udp_tasks(&self.services);
        let changed = listeners.apply(change, replace, tasks).await;
        self.client_lists.replace(client_policies);
        self.setup = setup;
        self.reply_path.send_replace(reply_path);
        Ok(changed)
    }

    fn setup(&self) -> &Setup {
        &self.setup
    }
}

impl Control {
    async fn refuse_what_needs_a_restart(&self, setup: &Setup) -> anyhow::Result<()> {
        self.setup
            .common
            .process
            .check_reload(&setup.common.process)?;
        refuse_changes(self.setup.host.changes_of_fixed_keys(&setup.host))?;
        if let Some(mark) = setup.marks().first() {
            privileges::try_connect_setup(Some(*mark)).context(
                "the privilege for a mark was given up at the start: restart or upgrade",
            )?;
        }
        if setup.host.setup_routes {
            self.refuse_backends_without_rules(setup).await?;
        }
        self.refuse_new_marks(setup)
    }

    /// Refuses a new backend, unless its replies come back: by the rules of the start, or by others (`peername routes add`).
    async fn refuse_backends_without_rules(&self, setup: &Setup) -> anyhow::Result<()> {
        let mut missing = Vec::new();
        for backend in setup.backends() {
            if self.has_rules_of_the_start(backend) {
                continue;
            }
            match probe(backend).await {
                Ok(ProbeOutcome::Connected | ProbeOutcome::RouteFound | ProbeOutcome::NoIpv6) => {}
                Err(error) if !error.is_missing_rule() => {
                    let context = format!("the test whether replies of {backend} come back");
                    return Err(Error::from(error).context(context));
                }
                Ok(ProbeOutcome::OtherHost) | Err(_) => missing.push(backend),
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let commands = missing
            .iter()
            .map(|&backend| routes::add_command(backend, None));
        bail!(
            "rules for the replies of new backends are missing, and the privilege to add them was given up at the start: run {} as \
             root, then reload again; or restart (`peername upgrade --pid N` keeps open connections)",
            commands.collect::<Vec<_>>().join(" and ")
        )
    }

    /// Whether the rules that were added at the start apply to this backend.
    fn has_rules_of_the_start(&self, backend: Backend) -> bool {
        routes::rules_apply_to(&self.shared.backends_at_start, backend)
    }

    fn refuse_new_marks(&self, setup: &Setup) -> anyhow::Result<()> {
        let added = &setup.marks() - &self.shared.marks_at_start;
        match added.first() {
            Some(mark) if setup.host.setup_routes => bail!(
                "mark {mark} needs a packet filter table, and the privilege to add it was given up at the start: restart, or \
                 `peername upgrade --pid N`, which keeps open connections"
            ),
            _ => Ok(()),
        }
    }
}

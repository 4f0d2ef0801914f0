//! Reloads the configuration atomically: the new one is applied as a whole, or not at all.
//!
//! Everything that can fail is done before anything is changed. Listeners that stay keep their sockets, so that no
//! connection in their accept backlogs is lost; listeners that are removed drain theirs before they close; open
//! connections and sessions keep the configuration they began with.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use peername_proxy::routes::{Backend, add_command};
use peername_server::own_addresses::OwnAddresses;
use peername_sys::netlink::Transport;

use super::control::{Control, RunningUdpGroup};
use super::listening::OpenedListeners;
use super::privileges;
use super::setup::{ServicePlan, Setup};
use crate::logging::ranges;
use crate::service_manager;

impl Control {
    /// Switches to the new configuration. If that is not valid, logs why and changes nothing.
    pub(super) async fn reload(&mut self, read: anyhow::Result<Setup>) {
        let reloaded = match read {
            Ok(setup) => self.try_reload(setup).await,
            Err(error) => Err(error),
        };
        self.shared.counters.count_reload(reloaded.is_ok());
        let listening = self.setup.summary();
        match reloaded {
            Ok(()) => service_manager::ready(&format!("reloaded; {listening}")),
            Err(error) => {
                tracing::warn!("reload refused, all stays as it was: {error:#}");
                service_manager::ready(&format!("last reload refused ({error:#}); {listening}"));
            }
        }
    }

    async fn try_reload(&mut self, setup: Setup) -> anyhow::Result<()> {
        setup.check_at(&OwnAddresses::read().await?)?;
        super::check_inherited_sockets(&self.given, &setup)?;
        self.check_what_needs_a_restart(&setup)?;
        let wanted: HashSet<_> = setup
            .services
            .iter()
            .flat_map(ServicePlan::listeners)
            .collect();
        self.check_groups(&setup)?;
        let open = OpenedListeners::missing(
            &setup,
            &self.listeners,
            self.running.free_descriptors() / 2,
            &self.given,
            &mut self.ids,
        )?;
        let sockets = open.numbers().len() * setup.process.workers();
        ensure!(
            sockets + open.descriptors() <= self.running.free_descriptors(),
            "too few descriptors are free for {sockets} more listening sockets: raise LimitNOFILE or \
             `ulimit -Hn`, and restart"
        );
        let reply_path = Arc::clone(&self.reply_path.borrow());
        let reply_path = Arc::new(reply_path.retarget(setup.probes()).await);
        let mut listeners = self.listeners.clone();
        listeners.retain(|key, _| wanted.contains(key));
        listeners.extend(open.numbers());
        let mut actual = self.actual.clone();
        actual.retain(|key, _| wanted.contains(key));
        actual.extend(open.actual());
        let shared = &self.shared;
        let services = shared.services(&setup, &listeners, &actual, &reply_path)?;

        // Nothing fails from here on.
        let opened = ranges(open.actual().into_values());
        let closed = self.close_all_but(&wanted).await;
        self.services.replace(services);
        if let Some(kernel) = &self.shared.kernel {
            kernel.evict_all();
        }
        self.begin(open);
        self.listeners = listeners;
        self.actual = actual;
        self.setup = setup;
        self.reply_path.send_replace(reply_path);
        tracing::info!(opened, closed = ranges(closed), "reloaded");
        Ok(())
    }

    fn check_what_needs_a_restart(&self, setup: &Setup) -> anyhow::Result<()> {
        let (new, old) = (&setup.process, &self.setup.process);
        for (what, same) in [
            ("workers", new.workers() == old.workers()),
            ("setup-routes", new.setup_routes == old.setup_routes),
            ("data-path", new.is_in_kernel() == old.is_in_kernel()),
            ("no-sandbox", new.sandbox == old.sandbox),
            ("admin and admin-host", new.admin == old.admin),
            ("log-format, verbose and quiet", new.logging == old.logging),
        ] {
            ensure!(same, "{what} can't change without a restart");
        }
        let changes = |key: &&(Transport, SocketAddr)| {
            let mut stays = setup.services.iter();
            stays.any(|plan| plan.listen(key.0).contains(&key.1))
                && setup.is_transparent(**key) != self.setup.is_transparent(**key)
        };
        if let Some((_, addr)) = self.listeners.keys().find(changes) {
            bail!("listen-transparent of {addr} can't change without a restart");
        }
        if let Some(mark) = setup.mark() {
            privileges::try_connect_setup(Some(mark))
                .context("the privilege for a mark was given up at the start: restart to get it")?;
        }
        let backends = setup.backends();
        let without = |backend: &&Backend| !is_among(&self.shared.backends_at_start, **backend);
        match backends.iter().find(without) {
            Some(backend) if new.setup_routes => bail!(
                "{backend} needs routing rules of its own, and the privilege to add them was given \
                 up at the start: restart, or add them with {} and leave out setup-routes",
                add_command(*backend)
            ),
            _ => Ok(()),
        }
    }

    /// Checks that each UDP group is kept unchanged or closed as a whole: the sessions of a group share their limits.
    fn check_groups(&self, setup: &Setup) -> anyhow::Result<()> {
        for group in &self.groups {
            let service_of = |addr: &SocketAddr| {
                let mut services = setup.services.iter();
                services.find(|plan| plan.udp.contains(addr))
            };
            let stays = |addr| service_of(addr).is_some();
            let as_before =
                |addr| service_of(addr).is_some_and(|plan| plan.datagrams == group.asked);
            let [first, ..] = &group.addresses[..] else {
                continue;
            };
            let all = if stays(first) {
                group.addresses.iter().all(as_before)
            } else {
                !group.addresses.iter().any(stays)
            };
            ensure!(
                all,
                "UDP at {}: its addresses, udp-header, close-after and max-sessions can't change \
                 without a restart; it can only go as a whole",
                ranges(group.addresses.iter().copied())
            );
        }
        Ok(())
    }

    /// Closes and drains the listeners that the configuration no longer has, and returns their addresses.
    async fn close_all_but(
        &mut self,
        wanted: &HashSet<(Transport, SocketAddr)>,
    ) -> Vec<SocketAddr> {
        let gone = |key: &(Transport, SocketAddr)| !wanted.contains(key);
        let stale = self.listeners.iter().filter(|(key, _)| gone(key));
        let tcp = stale
            .clone()
            .filter(|((transport, _), _)| *transport == Transport::Tcp);
        let ids = tcp.map(|(_, &id)| id).collect();
        let closed = stale.map(|(&(_, addr), _)| addr).collect();
        self.running.close(ids).await;
        let goes = |group: &mut RunningUdpGroup| {
            let mut addresses = group.addresses.iter();
            addresses.any(|&addr| gone(&(Transport::Udp, addr)))
        };
        for group in self.groups.extract_if(.., goes) {
            // Dropping a group drains it.
            self.running.release_descriptors(group.descriptors);
        }
        closed
    }

    fn begin(&mut self, open: OpenedListeners) {
        for group in open.groups {
            let (worker_tasks, group) = self.shared.group(group, &self.services);
            self.running.reserve_descriptors(group.descriptors);
            self.running.spawn(worker_tasks);
            self.groups.push(group);
        }
        self.running.open(open.tcp);
    }
}

/// Whether rules for `those` backends apply to `backend`, too: on loopback they apply to all addresses.
fn is_among(those: &[Backend], backend: Backend) -> bool {
    let ip = backend.address.ip();
    those.iter().any(|&there| {
        let other = there.address.ip();
        let loopback = ip.is_loopback() && other.is_loopback() && ip.is_ipv4() == other.is_ipv4();
        loopback || there == backend
    })
}

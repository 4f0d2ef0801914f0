//! Whether replies to spoofed connections still come back to this host.
//!
//! If they don't, the backend's answers leave for clients that never asked, and every connection
//! hangs. So the path is tried at start and every minute, and while it is broken no spoofed
//! connection is opened: the client gets an RST at once, and the log says what to do.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use peername_sys::netlink::Transport;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::reply_path::{self, Broken, Tested};
use crate::routes::Backend;

/// The last result for each target. Sound until shown otherwise.
#[derive(Debug)]
pub struct ReplyPath {
    paths: HashMap<Probed, Arc<Path>>,
    /// Of destinations on this host that headers have named: the latest, oldest first.
    named: Mutex<VecDeque<(Probed, Arc<Path>)>>,
    /// That there is a new one.
    news: Notify,
}

/// A backend whose replies are of interest.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Where it is.
    pub backend: Backend,
    /// Whether it stands for the same address with any port: a thousand ports are tried once.
    pub any_port: bool,
    /// The mark that connections to it have: routing rules may ask for it.
    pub mark: Option<NonZeroU32>,
}

/// What one try is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Probed {
    ip: IpAddr,
    transport: Transport,
    port: Option<u16>,
    mark: Option<NonZeroU32>,
}

#[derive(Debug)]
struct Path {
    target: Backend,
    mark: Option<NonZeroU32>,
    sound: AtomicBool,
    /// The last try failed, or there was none yet. One lost segment is no evidence against a path
    /// that has been shown to be sound.
    doubted: AtomicBool,
}

impl ReplyPath {
    /// For these targets.
    pub fn new<P: Into<Probe>>(targets: impl IntoIterator<Item = P>) -> Self {
        let mut paths = HashMap::new();
        for probe in targets.into_iter().map(P::into) {
            let path = || Arc::new(Path::new(probe));
            paths.entry(probe.probed()).or_insert_with(path);
        }
        Self {
            paths,
            named: Mutex::default(),
            news: Notify::new(),
        }
    }

    /// For these targets, with what is known of those that were there before, and the others tried.
    pub async fn renew(&self, targets: impl IntoIterator<Item = Probe>) -> Self {
        let mut renewed = Self::new(targets);
        let mut unknown = Vec::new();
        for (probed, path) in &mut renewed.paths {
            match self.paths.get(probed) {
                Some(known) => *path = Arc::clone(known),
                None => unknown.push(Arc::clone(path)),
            }
        }
        renewed.named = Mutex::new(self.named().clone());
        join_all(unknown.iter().map(|path| path.check())).await;
        renewed
    }

    /// Whether replies from `target` came back when last tried.
    pub fn is_sound(&self, target: Backend, mark: Option<NonZeroU32>) -> bool {
        self.fixed(target, mark)
            .all(|path| path.sound.load(Relaxed))
    }

    /// The same for a destination on this host that a header has named. A new one is tried at once and
    /// from then on; until the result is there, which takes milliseconds, it counts as sound.
    ///
    /// Only the latest 256 are remembered: one that was forgotten is new again.
    pub fn learns(&self, named: Backend, mark: Option<NonZeroU32>) -> bool {
        if self.fixed(named, mark).next().is_some() {
            return self.is_sound(named, mark);
        }
        let probe = Probe {
            mark,
            ..named.into()
        };
        let probed = probe.probed();
        let mut known = self.named();
        if let Some((_, path)) = known.iter().find(|(known, _)| *known == probed) {
            return path.sound.load(Relaxed);
        }
        if known.len() >= MOST_NAMED {
            known.pop_front();
        }
        known.push_back((probed, Arc::new(Path::new(probe))));
        self.news.notify_one();
        true
    }

    /// Tries every path once, all at the same time; changes are logged.
    pub async fn check(&self) {
        self.check_those(|_| true).await;
    }

    /// Waits until it is time to try again, and does: after a minute, after a second while one is in
    /// doubt, or at once where there is a new one.
    pub async fn check_in_time(&self) {
        let is_doubted = |path: &Path| path.doubted.load(Relaxed);
        let doubted = self.all().iter().any(|path| is_doubted(path));
        tokio::select! {
            () = sleep(if doubted { WHILE_IN_DOUBT } else { EVERY }) => self.check().await,
            () = self.news.notified() => self.check_those(is_doubted).await,
        }
    }

    async fn check_those(&self, wanted: impl Fn(&Path) -> bool) {
        let all = self.all();
        let wanted = all.iter().filter(|path| wanted(path));
        join_all(wanted.map(|path| path.check())).await;
    }

    /// What is known of a target, whatever its port or for its own.
    fn fixed(&self, target: Backend, mark: Option<NonZeroU32>) -> impl Iterator<Item = &Arc<Path>> {
        let probes = [false, true].map(|any_port| Probe {
            backend: target,
            any_port,
            mark,
        });
        let paths = probes.into_iter();
        paths.filter_map(|probe| self.paths.get(&probe.probed()))
    }

    fn all(&self) -> Vec<Arc<Path>> {
        let named = self.named();
        let named = named.iter().map(|(_, path)| path);
        self.paths.values().chain(named).cloned().collect()
    }

    fn named(&self) -> MutexGuard<'_, VecDeque<(Probed, Arc<Path>)>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Probe {
    /// On loopback one rule takes all of it, whatever the port.
    fn probed(&self) -> Probed {
        let Backend { address, transport } = self.backend;
        let ip = address.ip().to_canonical();
        let any_port = self.any_port || ip.is_loopback();
        Probed {
            ip,
            transport,
            port: (!any_port).then(|| address.port()),
            mark: self.mark,
        }
    }
}

impl<B: Into<Backend>> From<B> for Probe {
    fn from(backend: B) -> Self {
        Self {
            backend: backend.into(),
            any_port: false,
            mark: None,
        }
    }
}

impl Path {
    fn new(probe: Probe) -> Self {
        Self {
            target: probe.backend,
            mark: probe.mark,
            sound: AtomicBool::new(true),
            doubted: AtomicBool::new(true),
        }
    }

    async fn check(&self) {
        let target = self.target;
        match reply_path::check_marked(target, self.mark).await {
            // Says nothing about the path, and a host that is short of something must not lose its
            // clients for it.
            Err(Broken::Failed(error)) => {
                tracing::warn!(%target, "can't tell whether replies come back: {error}");
            }
            Err(broken) => {
                let again = self.doubted.swap(true, Relaxed);
                if again && self.sound.swap(false, Relaxed) {
                    tracing::warn!(
                        %target,
                        "replies do not come back: {broken}. Until they do, clients that would go \
                         to {target} are refused"
                    );
                }
            }
            Ok(tested) => {
                let is_new = self.doubted.swap(false, Relaxed);
                if is_new && tested == Tested::NotHere {
                    tracing::info!(
                        %target,
                        "the backend is on another host, so whether replies come back can't be told \
                         without connecting to it: `peername doctor` does (docs/routes.md)"
                    );
                }
                if !self.sound.swap(true, Relaxed) {
                    tracing::info!(%target, "replies come back again");
                }
                tracing::debug!(%target, ?tested, "replies come back");
            }
        }
    }
}

/// Named destinations that are watched, each for a connection over loopback or a look-up a minute. With
/// fewer, a client that names many could make each of them new, and be let through untried.
const MOST_NAMED: usize = 256;
/// Routes change rarely; each try costs one loopback connection.
const EVERY: Duration = Duration::from_secs(60);
/// Rules are often added just after the start (systemd's ExecStartPost): notice soon.
const WHILE_IN_DOUBT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_ports_of_one_address_are_tried_once() {
        let backend = |text: &str| text.parse::<Backend>().unwrap();
        let loopback = (1..1000).map(|port| backend(&format!("127.0.0.1:{port}")));
        assert_eq!(ReplyPath::new(loopback).paths.len(), 1);
        let ranged = (1..1000).map(|port| Probe {
            backend: backend(&format!("10.0.0.5:{port}/udp")),
            any_port: true,
            mark: None,
        });
        let path = ReplyPath::new(ranged);
        assert_eq!(path.paths.len(), 1);
        let named = ["10.0.0.5:1", "10.0.0.5:2", "10.0.0.5:2/udp"].map(backend);
        assert_eq!(ReplyPath::new(named).paths.len(), 3);
    }

    #[test]
    fn what_one_try_showed_holds_for_its_ports_and_no_others() {
        let backend = |text: &str| text.parse::<Backend>().unwrap();
        let probe = Probe {
            backend: backend("10.0.0.5:1"),
            any_port: true,
            mark: None,
        };
        let paths = ReplyPath::new([probe, backend("10.0.0.6:1").into()]);
        for path in paths.paths.values() {
            path.sound.store(false, Relaxed);
        }
        for (target, sound) in [
            ("10.0.0.5:9", false),
            ("10.0.0.5:9/udp", true),
            ("10.0.0.6:1", false),
            ("10.0.0.6:2", true),
        ] {
            assert_eq!(paths.is_sound(backend(target), None), sound, "{target}");
        }
    }
}

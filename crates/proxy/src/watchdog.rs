//! Whether replies to spoofed connections still come back to this host.
//!
//! If they don't, the backend's answers leave for clients that never asked, and every connection
//! hangs. So the path is tried at start and every minute, and while it is broken no spoofed
//! connection is opened: the client gets an RST at once, and the log says what to do.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use peername_sys::netlink::{Netlink, Transport};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::routes::Backend;
use crate::throttle::Throttle;

mod named;
mod path;

use named::Named;
use path::{EVERY, Path};

/// The last result for each target. Sound until shown otherwise.
#[derive(Debug)]
pub struct ReplyPath {
    /// Looked up once a connection and mostly few: compared sooner than hashed.
    paths: BTreeMap<Probed, Arc<Path>>,
    /// Of destinations on this host that headers have named.
    named: Named,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Probed {
    ip: IpAddr,
    transport: Transport,
    port: Option<u16>,
    mark: Option<NonZeroU32>,
}

impl ReplyPath {
    /// For these targets.
    pub fn new<P: Into<Probe>>(targets: impl IntoIterator<Item = P>) -> Self {
        let mut paths = BTreeMap::new();
        for probe in targets.into_iter().map(P::into) {
            let path = || Arc::new(Path::new(probe, false));
            paths.entry(probe.probed()).or_insert_with(path);
        }
        Self {
            paths,
            named: Named::new(),
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
        renewed.named = self.named.clone();
        check(&unknown).await;
        renewed
    }

    /// Whether replies from `target` came back when last tried.
    pub fn is_sound(&self, target: Backend, mark: Option<NonZeroU32>) -> bool {
        self.fixed(target, mark).all(|path| path.is_sound())
    }

    /// Whether that is so for every target.
    pub fn is_all_sound(&self) -> bool {
        self.paths.values().all(|path| path.is_sound())
    }

    /// As [`ReplyPath::is_sound`], for a destination on this host that a header has named. A new one is tried at once and
    /// from then on; until the result is there, which takes milliseconds, it counts as sound.
    ///
    /// Only the latest 256 are remembered: one that was forgotten is new again.
    pub fn learns(&self, named: Backend, mark: Option<NonZeroU32>) -> bool {
        let mut fixed = self.fixed(named, mark).peekable();
        if fixed.peek().is_some() {
            return fixed.all(|path| path.is_sound());
        }
        let probe = Probe {
            mark,
            ..named.into()
        };
        let probed = probe.probed();
        if let Some(path) = self.named.get(&probed) {
            return path.is_sound();
        }
        self.named.add(probed, Path::new(probe, true));
        self.news.notify_one();
        true
    }

    /// Tries every path once; changes are logged.
    pub async fn check(&self) {
        check(&self.all()).await;
    }

    /// Waits until a path is due, and tries that: a minute after its last try, a second while it is in
    /// doubt, or at once where it is new. To be called again and again; safe to cancel.
    pub async fn check_in_time(&self) {
        let due = self.due(Instant::now());
        if due.is_empty() {
            tokio::select! {
                () = sleep_until(self.next()) => {}
                () = self.news.notified() => {}
            }
        }
        check(&due).await;
    }

    /// Some of those that are due, the new ones first. What takes its time, as a path that is broken
    /// does, then holds up no more than its few companions.
    fn due(&self, now: Instant) -> Vec<Arc<Path>> {
        let mut due = self.all();
        due.retain(|path| path.due().is_none_or(|due| due <= now));
        due.sort_by_key(|path| path.due());
        due.truncate(AT_ONCE);
        due
    }

    fn next(&self) -> Instant {
        let (all, now) = (self.all(), Instant::now());
        let due = all.iter().map(|path| path.due().unwrap_or(now));
        due.min().unwrap_or(now + EVERY)
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
        let mut all = self.named.all();
        all.extend(self.paths.values().cloned());
        all
    }
}

/// Tries these, a few at a time: each takes up to two descriptors, of those that clients need.
async fn check(paths: &[Arc<Path>]) {
    for paths in paths.chunks(AT_ONCE) {
        match Netlink::open() {
            Ok(netlink) => drop(join_all(paths.iter().map(|path| path.check(&netlink))).await),
            Err(error) => {
                if let Some(suppressed) = BLIND.pass() {
                    tracing::warn!(suppressed, "can't tell whether replies come back: {error}");
                }
                paths.iter().for_each(|path| path.tried_at(Instant::now()));
            }
        }
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

/// Paths tried side by side. A broken one takes half a second.
const AT_ONCE: usize = 4;
static BLIND: Throttle = Throttle::new(Duration::from_secs(10));

#[cfg(test)]
mod tests;

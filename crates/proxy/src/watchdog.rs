//! Whether replies to spoofed connections still come back to this host.
//!
//! If they don't, the backend's answers leave for clients that never asked, and every connection
//! hangs. So the path is tried at start and every minute, and while it is broken no spoofed
//! connection is opened: the client gets an RST at once, and the log says what to do.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::reply_path::{self, Broken, Tested};
use crate::routes::Backend;

/// The last result for each target. Sound until shown otherwise.
#[derive(Debug)]
pub struct ReplyPath {
    paths: Vec<Arc<Path>>,
    /// Of destinations on this host that headers have named: the latest, oldest first.
    named: Mutex<VecDeque<Arc<Path>>>,
    /// That there is a new one.
    news: Notify,
    mark: Option<NonZeroU32>,
}

#[derive(Debug)]
struct Path {
    target: Backend,
    sound: AtomicBool,
    /// The last try failed, or there was none yet. One lost segment is no evidence against a path
    /// that has been shown to be sound.
    doubted: AtomicBool,
}

impl ReplyPath {
    /// For these targets.
    pub fn new<B: Into<Backend>>(targets: impl IntoIterator<Item = B>) -> Self {
        let path = |target: B| Arc::new(Path::new(target.into()));
        Self {
            paths: targets.into_iter().map(path).collect(),
            mark: None,
            named: Mutex::default(),
            news: Notify::new(),
        }
    }

    /// With the mark that connections to the backends have: routing rules may ask for it.
    #[must_use]
    pub fn marked(mut self, mark: Option<NonZeroU32>) -> Self {
        self.mark = mark;
        self
    }

    /// Whether replies from `target` came back when last tried.
    pub fn is_sound(&self, target: Backend) -> bool {
        self.paths
            .iter()
            .filter(|path| path.target == target)
            .all(|path| path.sound.load(Relaxed))
    }

    /// The same for a destination on this host that a header has named. A new one is tried at once and
    /// from then on; until the result is there, which takes milliseconds, it counts as sound.
    ///
    /// Only the latest 256 are remembered: one that was forgotten is new again.
    pub fn learns(&self, named: Backend) -> bool {
        let fixed = self.paths.iter().find(|path| path.is_as_for(named));
        if let Some(path) = fixed {
            return path.sound.load(Relaxed);
        }
        let mut known = self.named();
        if let Some(path) = known.iter().find(|path| path.is_as_for(named)) {
            return path.sound.load(Relaxed);
        }
        if known.len() >= MOST_NAMED {
            known.pop_front();
        }
        known.push_back(Arc::new(Path::new(named)));
        self.news.notify_one();
        true
    }

    /// Tries every path once, all at the same time; changes are logged.
    pub async fn check(&self) {
        self.check_those(|_| true).await;
    }

    /// Tries the paths for ever: each minute, and each second while one is in doubt.
    pub async fn keep_checking(&self) {
        let is_doubted = |path: &Path| path.doubted.load(Relaxed);
        loop {
            let doubted = self.all().iter().any(|path| is_doubted(path));
            tokio::select! {
                () = sleep(if doubted { WHILE_IN_DOUBT } else { EVERY }) => self.check().await,
                () = self.news.notified() => self.check_those(is_doubted).await,
            }
        }
    }

    async fn check_those(&self, wanted: impl Fn(&Path) -> bool) {
        let all = self.all();
        let wanted = all.iter().filter(|path| wanted(path));
        join_all(wanted.map(|path| path.check(self.mark))).await;
    }

    fn all(&self) -> Vec<Arc<Path>> {
        self.paths.iter().chain(&*self.named()).cloned().collect()
    }

    fn named(&self) -> MutexGuard<'_, VecDeque<Arc<Path>>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Path {
    fn new(target: Backend) -> Self {
        Self {
            target,
            sound: AtomicBool::new(true),
            doubted: AtomicBool::new(true),
        }
    }

    /// Whether what is known of this path holds for `backend`: the rules take a loopback address whole,
    /// of another they take a port.
    fn is_as_for(&self, backend: Backend) -> bool {
        let same_ip = self.target.address.ip() == backend.address.ip();
        self.target == backend || same_ip && backend.address.ip().is_loopback()
    }

    async fn check(&self, mark: Option<NonZeroU32>) {
        let target = self.target;
        match reply_path::check_marked(target, mark).await {
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

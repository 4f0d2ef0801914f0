//! Whether replies to spoofed connections still come back to this host.
//!
//! If they don't, the backend's answers leave for clients that never asked, and every connection
//! hangs. So the path is tried at start and every minute, and while it is broken no spoofed
//! connection is opened: the client gets an RST at once, and the log says what to do.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;

use crate::reply_path::{self, Broken};
use crate::routes::Backend;

/// The last result for each target. Sound until shown otherwise.
#[derive(Debug)]
pub struct ReplyPath {
    paths: Vec<Path>,
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
        let path = |target: B| Path {
            target: target.into(),
            sound: AtomicBool::new(true),
            doubted: AtomicBool::new(true),
        };
        Self {
            paths: targets.into_iter().map(path).collect(),
            mark: None,
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

    /// Tries every path once, all at the same time; changes are logged.
    pub async fn check(&self) {
        join_all(self.paths.iter().map(|path| path.check(self.mark))).await;
    }

    /// Tries the paths for ever: each minute, and each second while one is in doubt.
    pub async fn keep_checking(&self) {
        loop {
            let doubted = self.paths.iter().any(|path| path.doubted.load(Relaxed));
            sleep(if doubted { WHILE_IN_DOUBT } else { EVERY }).await;
            self.check().await;
        }
    }
}

impl Path {
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
                self.doubted.store(false, Relaxed);
                if !self.sound.swap(true, Relaxed) {
                    tracing::info!(%target, "replies come back again");
                }
                tracing::debug!(%target, ?tested, "replies come back");
            }
        }
    }
}

/// Routes change rarely; each try costs one loopback connection.
const EVERY: Duration = Duration::from_secs(60);
/// Rules are often added just after the start (systemd's ExecStartPost): notice soon.
const WHILE_IN_DOUBT: Duration = Duration::from_secs(1);

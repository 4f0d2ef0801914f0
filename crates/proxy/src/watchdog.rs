//! Whether replies to spoofed connections still come back to this host.
//!
//! If they don't, the backend's answers leave for clients that never asked, and every connection
//! hangs. So the path is tried at start and every minute, and while it is broken no spoofed
//! connection is opened: the client gets an RST at once, and the log says what to do.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::join_all;
use peername_sys::netlink::Transport;
use tokio::time::sleep;

use crate::reply_path::{self, Broken};
use crate::routes::Backend;

/// The last result for each target. Sound until shown otherwise.
#[derive(Debug)]
pub struct ReplyPath {
    paths: HashMap<Probed, Arc<Path>>,
}

/// A backend whose replies are of interest.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Where it is.
    pub backend: Backend,
    /// Whether it stands for the same address with any port: a thousand ports are tried once.
    pub any_port: bool,
}

/// What one try is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Probed {
    ip: IpAddr,
    transport: Transport,
    port: Option<u16>,
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
    pub fn new<P: Into<Probe>>(targets: impl IntoIterator<Item = P>) -> Self {
        let mut paths = HashMap::new();
        for probe in targets.into_iter().map(P::into) {
            let path = || {
                Arc::new(Path {
                    target: probe.backend,
                    sound: AtomicBool::new(true),
                    doubted: AtomicBool::new(true),
                })
            };
            paths.entry(probe.probed()).or_insert_with(path);
        }
        Self { paths }
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
        join_all(unknown.iter().map(|path| path.check())).await;
        renewed
    }

    /// Whether replies from `target` came back when last tried.
    pub fn is_sound(&self, target: Backend) -> bool {
        [false, true].into_iter().all(|any_port| {
            let probe = Probe {
                backend: target,
                any_port,
            };
            let path = self.paths.get(&probe.probed());
            path.is_none_or(|path| path.sound.load(Relaxed))
        })
    }

    /// Tries every path once, all at the same time; changes are logged.
    pub async fn check(&self) {
        join_all(self.paths.values().map(|path| path.check())).await;
    }

    /// Waits until it is time to try again: a minute, or a second while one is in doubt.
    pub async fn rest(&self) {
        let doubted = self.paths.values().any(|path| path.doubted.load(Relaxed));
        sleep(if doubted { WHILE_IN_DOUBT } else { EVERY }).await;
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
        }
    }
}

impl<B: Into<Backend>> From<B> for Probe {
    fn from(backend: B) -> Self {
        Self {
            backend: backend.into(),
            any_port: false,
        }
    }
}

impl Path {
    async fn check(&self) {
        let target = self.target;
        match reply_path::check(target).await {
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
            assert_eq!(paths.is_sound(backend(target)), sound, "{target}");
        }
    }
}

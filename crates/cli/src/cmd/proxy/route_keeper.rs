//! Logs what the keeper of the routing rules reports, and ends the proxy once the keeper was killed and the rules were removed.
//!
//! When the keeper is killed, the rules stay and clients are served as before, until the next proxy's keeper removes the rules
//! that no process holds. Then this process can serve no client, and can't add the rules again, as it has dropped the privilege
//! at the start: it exits, so that a service manager starts another.

use std::sync::Arc;
use std::time::Duration;

use peername_proxy::reply_path::monitor::ReplyPathMonitor;
use peername_proxy::routes::KeeperReports;
use tokio::sync::watch;

/// Logs the reports of the keeper, if there is one, until it has exited and the reply path of a current backend, or of a loopback
/// destination that a header has named, is broken.
pub(super) async fn wait_lost(
    reports: Option<KeeperReports>,
    reply_path: watch::Receiver<Arc<ReplyPathMonitor>>,
) {
    let Some(mut reports) = reports else {
        return std::future::pending().await;
    };
    while let Some(report) = reports.next().await {
        tracing::warn!("{report}");
    }
    tracing::error!(
        "the keeper of the routing rules was killed. The rules stay until another proxy or \
         `peername routes remove` takes them, and then this proxy ends: restart it soon"
    );
    loop {
        let monitor = Arc::clone(&reply_path.borrow());
        monitor.probe_all().await;
        // A proxy without --target knows only the destinations that headers have named, and the keeper has no rules for
        // those beyond loopback.
        if !monitor.is_all_known_sound() {
            return;
        }
        tokio::time::sleep(RECHECK_INTERVAL).await;
    }
}

pub(super) const KEEPER_LOST: &str = "the keeper of the routing rules was killed, and its rules were removed: \
    replies do not come back. Restart the proxy to add them again";
/// Each probe costs one loopback connection per backend.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

//! The proxy that runs by the configuration file: whether it is ready, and which clients it refuses.

use std::iter;

use peername_observe::admin::AdminAddr;
use peername_observe::admin::events::StatusEvent;

use super::finding::Finding;
use crate::admin_client::AdminClient;
use crate::cmd::top;

/// What the proxy with this admin endpoint says of itself.
pub(super) async fn findings(admin: &AdminAddr) -> Vec<Finding> {
    match top::current_status(&AdminClient(admin.clone())).await {
        Ok(status) => of_status(&status),
        // The host may be checked before the first start.
        Err(_) => vec![Finding::ok(RUNNING, format!("none answers at {admin}"))],
    }
}

fn of_status(status: &StatusEvent) -> Vec<Finding> {
    let readiness = match &status.not_ready {
        None => Finding::ok(RUNNING, "clients should be sent to it"),
        Some(reason) => Finding::broken(RUNNING, reason),
    };
    let refusals =
        top::refusals(status)
            .into_iter()
            .take(MAX_REFUSALS)
            .map(|(reason, count, advice)| {
                let seen = format!("{count} since its start, {reason}");
                Finding::warn("refused clients", seen, advice)
            });
    iter::once(readiness).chain(refusals).collect()
}

const RUNNING: &str = "running proxy";
/// The reasons that are reported, the most frequent ones.
const MAX_REFUSALS: usize = 3;

//! The proxy that runs by the configuration file: whether it is ready, and which clients it refuses.

use std::io::{self, ErrorKind};
use std::iter;

use peername_daemon::usage::error_text::with_causes;
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
        Err(error) if is_absent(&error) => {
            vec![Finding::ok(RUNNING, format!("none answers at {admin}"))]
        }
        Err(error) => vec![Finding::warn(
            RUNNING,
            with_causes(&error),
            "whom it refuses is not known",
        )],
    }
}

/// Whether nothing listens at the endpoint.
fn is_absent(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| {
        matches!(
            error.kind(),
            ErrorKind::ConnectionRefused | ErrorKind::NotFound
        )
    })
}

fn of_status(status: &StatusEvent) -> Vec<Finding> {
    let readiness = match &status.not_ready {
        None => Finding::ok(RUNNING, "ready for clients"),
        Some(reason) => Finding::warn(RUNNING, reason, "`/readyz` is 503 until then"),
    };
    let refusals =
        top::refusals(status)
            .into_iter()
            .take(MAX_REFUSALS)
            .map(|(reason, count, advice)| {
                let seen = format!("{count} since its start, {reason}");
                Finding::warn("refusals", seen, advice)
            });
    let refused_reload = status
        .last_reload
        .as_ref()
        .and_then(|reload| reload.refused.as_ref());
    let refused_reload = refused_reload.map(|reason| {
        let seen = format!("its last reload was refused: {reason}");
        Finding::warn(RUNNING, seen, "what it had before is in force")
    });
    iter::once(readiness)
        .chain(refused_reload)
        .chain(refusals)
        .collect()
}

const RUNNING: &str = "running proxy";
/// The reasons that are reported, the most frequent ones.
const MAX_REFUSALS: usize = 3;

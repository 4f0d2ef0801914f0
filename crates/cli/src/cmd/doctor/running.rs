//! What runs already: whether a command is ready, and which clients the proxy of the configuration file refuses.

use std::io::{self, ErrorKind};
use std::iter;
use std::time::{Duration, SystemTime};

use peername_daemon::usage::error_text::with_causes;
use peername_doctor::finding::{Finding, Verdict};
use peername_observe::admin::AdminAddr;
use peername_observe::admin::events::StatusEvent;
use peername_observe::admin::history::unix_seconds;

use crate::admin_client::AdminClient;
use crate::cmd::top;

/// The findings from the state that the proxy with this admin endpoint reports.
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
            "which clients it refuses is not known",
        )],
    }
}

/// Whether the command with this admin endpoint is ready, for probes of containers that have no HTTP client.
pub(super) async fn readiness(admin: &AdminAddr) -> Finding {
    match AdminClient(admin.clone()).ready().await {
        Ok(()) => Finding::ok(READINESS, "clients should be sent here"),
        Err(error) => Finding::broken(READINESS, with_causes(&error)),
    }
}

/// Reports that a proxy runs whose refusals can't be read, because no admin endpoint is known.
pub(super) fn unseen_refusals() -> Finding {
    Finding::warn(
        "refusals",
        "those of the running proxy are not looked at, which needs --config FILE with `admin`",
        "else its log names them: `journalctl -u peername`, or its standard error; `peername top` shows them with `--admin`",
    )
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
        Some(reason) => Finding::warn(RUNNING, reason, "`/readyz` is 503 until that is repaired"),
    };
    let refusals = top::refusals(status)
        .into_iter()
        .map(|(reason, count, advice)| refusals_of(status, reason, count, advice));
    let refusals = most_relevant(refusals.collect());
    let refused_reload = status
        .last_reload
        .as_ref()
        .and_then(|reload| reload.refused.as_ref());
    let refused_reload = refused_reload.map(|reason| {
        let seen = format!("its last reload was refused: {reason}");
        Finding::warn(RUNNING, seen, "the configuration before that is in force")
    });
    iter::once(readiness)
        .chain(refused_reload)
        .chain(refusals)
        .collect()
}

/// The refusals to report, the most frequent ones. Refusals that go on come before those that have ended, however many these
/// are.
fn most_relevant(mut refusals: Vec<Finding>) -> Vec<Finding> {
    refusals.sort_by_key(|finding| finding.verdict == Verdict::Ok);
    refusals.truncate(MAX_REFUSALS);
    refusals
}

/// The refusals for one reason. Those that have ended, and those before a reload, which may have repaired the cause, are no
/// problem.
fn refusals_of(status: &StatusEvent, reason: &str, count: u64, advice: &str) -> Finding {
    let mut seen = format!("{count} since its start, {reason}");
    let Some(last) = status.last_refusals.get(reason) else {
        return Finding::warn("refusals", seen, advice);
    };
    let age = unix_seconds(SystemTime::now()).saturating_sub(last.at);
    let age = Duration::from_secs(age);
    seen += &format!(
        ", the last {} ago {}",
        humantime::format_duration(age),
        last.example
    );
    let reload = status.last_reload.as_ref();
    if reload.is_some_and(|reload| reload.refused.is_none() && last.at < reload.at) {
        Finding::ok("refusals", seen + ", before the last reload")
    } else if age > RECENT {
        Finding::ok("refusals", seen)
    } else {
        Finding::warn("refusals", seen, advice)
    }
}

const RUNNING: &str = "running proxy";
const READINESS: &str = "readiness";
/// The reasons that are reported, the most frequent ones.
const MAX_REFUSALS: usize = 3;
/// A reason for which no client was refused for this long counts as repaired.
const RECENT: Duration = Duration::from_secs(10 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_that_go_on_are_shown_before_ended_ones() {
        let mut refusals: Vec<_> = (0..MAX_REFUSALS)
            .map(|number| Finding::ok("refusals", number.to_string()))
            .collect();
        refusals.push(Finding::warn("refusals", "now", "advice"));
        let shown = most_relevant(refusals);
        assert_eq!(shown.len(), MAX_REFUSALS);
        assert!(shown[0].verdict == Verdict::Warn);
    }
}

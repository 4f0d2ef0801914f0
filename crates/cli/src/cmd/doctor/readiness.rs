//! `peername doctor --admin`: whether a running command is ready, for probes of containers that have no HTTP client.

use peername_daemon::usage::error_text::with_causes;
use peername_doctor::finding::Finding;
use peername_observe::admin::AdminAddr;

use crate::admin_client::AdminClient;

/// Options of `peername doctor --admin`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct Args {
    /// Only check that the running command with this --admin is ready: that clients should be sent to it
    #[arg(
        long,
        value_name = "ADDR|unix:PATH",
        conflicts_with_all = ["listen", "target", "target_v4", "target_v6", "observe", "config"]
    )]
    admin: Option<AdminAddr>,
}

impl Args {
    /// Checks whether the command is ready; `None` without the option.
    pub(super) async fn finding(&self) -> Option<Finding> {
        let client = AdminClient(self.admin.clone()?);
        Some(match client.ready().await {
            Ok(()) => Finding::ok(READINESS, "clients should be sent here"),
            Err(error) => Finding::broken(READINESS, with_causes(&error)),
        })
    }
}

const READINESS: &str = "readiness";

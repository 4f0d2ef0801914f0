//! `doctor/intercept.rs` in a build without `intercept`.

use std::net::SocketAddr;

use peername_server::confinement::Needs;

use super::finding::Finding;

/// Without options: this build lacks it.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(before_help = "Example:\n  peername doctor intercept")]
pub(super) struct Args {
    #[arg(skip)]
    pub(super) listen: Vec<SocketAddr>,
}

impl Args {
    pub(super) async fn findings(&self) -> Vec<Finding> {
        vec![Finding::fail(
            "intercept",
            "this build lacks `intercept`".to_owned(),
            "build with --features intercept",
        )]
    }
}

/// What a confined `intercept` needs; this build has none.
pub(super) fn needs() -> Option<Needs> {
    None
}

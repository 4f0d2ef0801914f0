//! `peername doctor confinement`: what confines a command on this host, or a process that runs.

use std::path::PathBuf;

use peername_doctor::confinement::{host_findings, process_findings};
use peername_doctor::finding::Finding;

use super::intercept;

/// Options of `peername doctor confinement`.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(before_help = "Example:\n  peername doctor confinement --pid 1234")]
pub(super) struct Args {
    /// Report what confines this process
    #[arg(long, value_name = "PID", conflicts_with = "config")]
    pid: Option<u32>,
    /// Report the files that `proxy` may use with this configuration file
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

impl Args {
    /// The findings about the process, or about this host. A configuration file has to be read before.
    pub(super) fn findings(&self) -> Vec<Finding> {
        match self.pid {
            Some(pid) => process_findings(pid),
            None => host_findings(&intercept::needs()),
        }
    }
}

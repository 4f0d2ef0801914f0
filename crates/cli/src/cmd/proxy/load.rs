//! Loads the [`Setup`] from the command line, or from the file that it names.

use super::config_file;
use super::options::Args;
use super::setup::{Origin, ServicePlan, Setup};
use crate::lifecycle;
use crate::usage::Usage;

/// Reads the options and all files that they name, and resolves names.
///
/// # Errors
///
/// All errors in the configuration file, or the first error of the command line.
pub(super) fn load(args: &Args) -> Result<Setup, Usage> {
    if let Some(path) = &args.config {
        return config_file::read(path, &args.process).map_err(Usage::from_error);
    }
    let setup = Setup {
        process: args.process.clone(),
        services: vec![ServicePlan::new(&args.listener, Origin(None))?],
    };
    match setup.problems(|_| false).into_iter().next() {
        None => Ok(setup),
        Some(problem) => Err(Usage(problem)),
    }
}

/// Loads everything again for a reload, on a thread of its own: resolving names may take long.
pub(super) async fn reload(args: Args) -> anyhow::Result<Setup> {
    lifecycle::reread(move || Ok(load(&args)?)).await
}

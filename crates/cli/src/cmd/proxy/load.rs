//! Options to [`Setup`]: those of the command line, or of the file that it names.

use super::config_file;
use super::options::Args;
use super::setup::{Origin, ServicePlan, Setup};
use crate::lifecycle;
use crate::usage::Usage;

/// Reads the options and all files that they name, and resolves names.
///
/// # Errors
///
/// Everything that is wrong with a configuration file, else the first mistake of the command line.
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

/// Loads everything again for a reload, beside the control side: names may take their time.
pub(super) async fn reload(args: Args) -> anyhow::Result<Setup> {
    lifecycle::reread(move || Ok(load(&args)?)).await
}

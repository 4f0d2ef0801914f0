//! Loads the [`Setup`] from the command line, or from the file that it names.

use peername_daemon::options::Table;
use peername_daemon::reload::file_watch::Fingerprints;
use peername_daemon::usage::Usage;

use super::options::Args;
use super::setup::Setup;
use crate::config_file::{self, Configuration, Kind};

/// Reads the options and all files that they name, and resolves names.
///
/// # Errors
///
/// All errors in the configuration file, or of the command line.
pub(super) fn load(args: &Args, files: &mut Fingerprints) -> Result<Setup, Usage> {
    let config = match &args.source.config {
        Some(path) => {
            let file = config_file::read(path, &[Kind::Listen], files);
            file.map_err(Usage::from_error)?
        }
        None => Configuration {
            listen: vec![Table::of_command_line(args.listener.0.clone())],
            ..Configuration::default()
        },
    };
    let config = config.with_command_line(&args.top)?;
    files.note_all(
        config
            .listen
            .iter()
            .flat_map(|table| table.options().headers.trust_files()),
    );
    Setup::new(config).map_err(Usage::from_error)
}

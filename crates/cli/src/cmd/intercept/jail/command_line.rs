//! The command line of `peername jail`: options, of which a file may have some, and the program.

use std::ffi::OsString;
use std::path::PathBuf;

use peername_daemon::options::{Given, heading};
use peername_daemon::reload::file_watch::Fingerprints;
use peername_daemon::usage::Usage;

use super::options::Args;
use crate::config_file::{self, Kind};

/// The command line of `peername jail`.
#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLE)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    options: Given<Args>,
    /// Read the options of the `[jail]` table of this file (docs/config.md); those of the command line replace them, and its rules
    /// follow those of the file
    #[arg(long, value_name = "FILE", help_heading = heading::OPERATION)]
    config: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD", help_heading = None)]
    command: Vec<OsString>,
}

impl CommandLine {
    /// The options of the file and the command line.
    ///
    /// # Errors
    ///
    /// The file can't be read, has no `[jail]` table, or has a key or a value that is not valid.
    pub(super) fn resolve(&self) -> Result<Args, Usage> {
        let given = match &self.config {
            None => self.options.clone(),
            Some(path) => {
                let file = config_file::read(path, &[Kind::Jail], &mut Fingerprints::default());
                let table = file.map_err(Usage::from_error)?.jail;
                let given = table.map_or_else(Given::default, |table| table.given);
                let given = given.with_command_line(&self.options);
                given.map_err(Usage::from_error)?
            }
        };
        let mut args = given.options;
        args.command.clone_from(&self.command);
        Ok(args)
    }
}

const EXAMPLE: &str = "\
Example: write the list of what a program needs; read it; from then on allow that and no more
  peername jail --learn allow.txt -- npm ci
  peername jail --allow @allow.txt -- npm ci";

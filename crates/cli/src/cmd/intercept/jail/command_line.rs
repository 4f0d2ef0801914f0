//! The command line of `peername jail`: options, of which a file may have some, and the program.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use peername_daemon::options::{Given, Merged, Table, heading};
use peername_daemon::reload::file_watch::Fingerprints;
use peername_daemon::usage::UsageError;
use peername_sys::fs::text_file;
use peername_sys::process::stderr::write_line;

use super::file_table::{APPENDED, FileTable};
use super::options::Args;
use crate::config_file::{self, Kind};

/// The command line of `peername jail`.
#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLE)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    options: Given<Args>,
    /// Read the options of the `[jail]` table of this file (docs/config.md); those of the command line replace them, but its rules
    /// and --hide are added
    #[arg(long, value_name = "FILE", help_heading = heading::OPERATION)]
    config: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD", help_heading = None)]
    command: Vec<OsString>,
}

impl CommandLine {
    /// The options of the file and the command line.
    pub(super) fn resolve(&self) -> Result<Args, UsageError> {
        let mut args = match &self.config {
            None => self.options.options.clone(),
            Some(path) => self.resolve_file(path)?,
        };
        args.command.clone_from(&self.command);
        Ok(args)
    }

    fn resolve_file(&self, path: &Path) -> Result<Args, UsageError> {
        let file = config_file::read_partial(path, &[Kind::Jail], &mut Fingerprints::default())
            .validate(Ok)
            .map_err(UsageError::from_error)?;
        let Some(Table { given, origin, .. }) = file.jail else {
            return Ok(self.options.options.clone());
        };
        let table = FileTable::new(path, origin, &given, &self.options);
        let Merged {
            mut given,
            excluded,
            excluding,
        } = given
            .with_command_line(&self.options, &APPENDED)
            .map_err(UsageError::from_error)?;
        // `quiet` is left out, because -v is expected to replace it.
        let excluded: Vec<_> = excluded.into_iter().filter(|key| key != "quiet").collect();
        if !excluded.is_empty() && !given.options.logging.quiet {
            let (keys, file) = (excluded.join(", "), path.display());
            let options: Vec<_> = excluding.iter().map(|name| format!("--{name}")).collect();
            let options = options.join(" and ");
            write_line(format_args!(
                "peername: {keys} of {file} have no effect beside {options}"
            ));
        }
        given.options.table = Some(table);
        Ok(given.options)
    }
}

/// Finds a `peername.toml` with a `[jail]` table in the working directory or above it, if no file was given: its path from the
/// working directory. It is not applied by itself, because a repository that is not trusted could open hosts by it.
pub(super) fn find_unused_table(args: &Args) -> Option<String> {
    let working = env::current_dir().ok().filter(|_| args.table.is_none())?;
    working
        .ancestors()
        .take(MAX_ANCESTORS)
        .position(|directory| has_jail_table(&directory.join(FILE_NAME)))
        .map(|depth| "../".repeat(depth) + FILE_NAME)
}

fn has_jail_table(path: &Path) -> bool {
    text_file::read(path).is_ok_and(|text| text.lines().any(|line| line.trim() == "[jail]"))
}

/// The usual name of a configuration file in a repository.
const FILE_NAME: &str = "peername.toml";
/// The directories that are searched for it.
const MAX_ANCESTORS: usize = 20;

const EXAMPLE: &str = "\
Example: write the list of what a program needs; read it; from then on allow that and no more
  peername jail --learn allow.txt -- npm ci
  peername jail --allow @allow.txt -- npm ci";

//! `peername config`: checks a configuration file without starting a proxy, and prints its schema.

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cmd::proxy::config_file;
use crate::cmd::proxy::options::Process;

/// Options of `peername config`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Print all errors in a file and in the files it names: exit 0 if there are none, else 3
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print the JSON schema of the configuration file, for editors
    Schema,
}

/// Runs `peername config`. Errors in the file are printed, with exit code 3.
///
/// # Errors
///
/// Standard output failed.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.action {
        Action::Check { file } => check(file),
        Action::Schema => {
            let schema = serde_json::to_string_pretty(&config_file::schema())?;
            writeln!(stdout(), "{schema}")?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn check(path: &Path) -> anyhow::Result<ExitCode> {
    let out = &mut stdout();
    match config_file::read(path, &Process::default()) {
        Ok(setup) => {
            writeln!(out, "{}: ok, {}", path.display(), setup.summary())?;
            Ok(ExitCode::SUCCESS)
        }
        Err(problems) => {
            for problem in problems.0 {
                writeln!(out, "{problem}")?;
            }
            Ok(ExitCode::from(EXIT_PROBLEM_FOUND))
        }
    }
}

/// The exit code that `doctor` has, too.
const EXIT_PROBLEM_FOUND: u8 = 3;

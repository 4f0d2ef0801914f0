//! `peername config`: a configuration file, looked at without starting anything.

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
    /// Say everything that is wrong with a file, and the files it names: exit 0 if nothing is, else 3
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print the JSON schema of the file, for editors
    Schema,
}

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
            Ok(ExitCode::from(PROBLEM))
        }
    }
}

/// As `doctor` has it.
const PROBLEM: u8 = 3;

//! The report of a `--check` option: whether a file that peername writes is complete.

use std::io::{self, Write, stdout};
use std::path::Path;
use std::process::ExitCode;

use crate::exit_code::PROBLEM_FOUND;

/// Prints `missing`, which the file lacks, a line each, or `ok`. Returns the exit code of the command.
pub(crate) fn report_missing(path: &Path, missing: &[String]) -> io::Result<ExitCode> {
    let out = &mut stdout();
    for line in missing {
        writeln!(out, "{}: {line}", path.display())?;
    }
    if missing.is_empty() {
        writeln!(out, "{}: ok", path.display())?;
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::from(PROBLEM_FOUND))
}

//! The report of a `--check` option: whether a file that peername writes is complete.

use std::io::{self, Write, stdout};
use std::path::Path;
use std::process::ExitCode;

use crate::exit_code::PROBLEM_FOUND;

/// Prints a line for each entry of `missing`, which the file lacks, or `ok` if it lacks nothing. Returns the command's exit
/// code.
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

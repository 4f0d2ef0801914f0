//! Finding and running the programs that are compared.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Runs `program` to its end and returns what it prints on either stream.
pub(crate) fn run_for_output(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("run {}", program.display()))?;
    ensure!(
        output.status.success(),
        "{} {}: {}",
        program.display(),
        arguments.join(" "),
        output.status
    );
    let bytes = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The first line with a digit that the program prints with this option.
pub(crate) fn version(program: &Path, option: &str) -> String {
    let text = run_for_output(program, &[option]).unwrap_or_default();
    let line = text
        .lines()
        .find(|line| line.bytes().any(|byte| byte.is_ascii_digit()));
    line.unwrap_or("version unknown").to_owned()
}

/// Resolves a bare name in PATH and in the directories where distributions install servers. A name that is not
/// found is returned unchanged.
pub(crate) fn resolve(program: &Path) -> PathBuf {
    if program.components().count() > 1 {
        return program.to_owned();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| program.to_owned())
}

//! `peername routes` and `peername doctor` as black boxes: arguments, output and exit code, each test in a network namespace
//! of its own. Needs root and the `ip` binary.

mod doctor;
mod observe;
mod routes;

use std::process::{Command, Output};
use std::thread;

use anyhow::{Context, Result, ensure};
use peername_sys::process::namespace::NetworkNamespace;

/// Runs `test` in a new network namespace with loopback up.
fn in_namespace(test: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let run = move || {
        let _network = NetworkNamespace::unshare().context("these tests need root")?;
        ip("link set lo up")?;
        test()
    };
    // The namespace, and the capabilities that some tests drop, belong to the thread.
    match thread::spawn(run).join() {
        Ok(outcome) => outcome,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn peername(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peername"));
    command.args(words.split(' '));
    command
}

/// Runs `peername` with these arguments; returns its standard output if it exits with `code`.
fn run(words: &str, code: i32) -> Result<String> {
    let output = peername(words).output()?;
    ensure!(
        output.status.code() == Some(code),
        "{words}: {}",
        describe(&output)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs `peername`, which must exit with 1; returns its standard error.
fn run_to_failure(words: &str) -> Result<String> {
    let output = peername(words).output()?;
    ensure!(
        output.status.code() == Some(1),
        "{words}: {}",
        describe(&output)
    );
    Ok(String::from_utf8(output.stderr)?)
}

fn describe(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    let (out, err) = (String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    format!("{}\n{out}\n{err}", output.status)
}

fn ip(words: &str) -> Result<String> {
    let output = Command::new("ip").args(words.split(' ')).output()?;
    ensure!(output.status.success(), "ip {words}: {}", describe(&output));
    Ok(String::from_utf8(output.stdout)?)
}

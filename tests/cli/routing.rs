//! `peername routes` and `peername doctor`: arguments, output and exit code.

mod doctor;
mod observe;
mod routes;

use crate::harness::lab::{Host, stdout_text};
use crate::harness::peername::{BINARY, Peername, words};

/// Runs a command line; asserts the exit code, and returns standard output.
#[track_caller]
fn run(host: &Host, line: &str, code: i32) -> String {
    run_as(host, &[BINARY], line, code)
}

/// As [`run`], with `program` as the command that starts the binary.
#[track_caller]
fn run_as(host: &Host, program: &[&str], line: &str, code: i32) -> String {
    let output = Peername::run_with_input(host, program, &words(line), "");
    assert_eq!(output.status.code(), Some(code), "{line}: {output:?}");
    stdout_text(&output)
}

/// The binary, with no capability although its user is root.
const WITHOUT_CAPABILITIES: &[&str] =
    &["setpriv", "--bounding-set=-all", "--inh-caps=-all", BINARY];

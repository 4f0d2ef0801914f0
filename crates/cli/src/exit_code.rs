//! The exit codes of the commands. Success is 0; [`launch::exit_code`](peername_sys::process::launch::exit_code) has those of a
//! program that was not started.

/// The command failed, at its start or later.
pub(crate) const FAILURE: u8 = 1;
/// The command line or the configuration file is wrong.
pub(crate) const WRONG_USAGE: u8 = 2;
/// A check has found a problem: `doctor`, `config check`, `exec --unit --check`, `agent profile --check`.
pub(crate) const PROBLEM_FOUND: u8 = 3;
/// `jail --fail-on-deny`: a request was denied, although the program itself succeeded. Below the codes of timeout(1) and
/// of shells, which begin at 124.
pub(crate) const REQUEST_DENIED: u8 = 122;

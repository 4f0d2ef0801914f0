//! The exit codes of every command. Success is 0.

/// The command failed, at its start or later.
pub const FAILURE: u8 = 1;
/// The command line or the configuration file is wrong.
pub const WRONG_USAGE: u8 = 2;
/// A check has found a problem: `doctor`, `config check`, `exec --unit --check`, `agent profile --check`.
pub const PROBLEM_FOUND: u8 = 3;
/// `jail --fail-on-deny`: a request was denied, although the program itself succeeded. timeout(1) has 124.
pub const REQUEST_DENIED: u8 = 122;
/// `exec` or `jail` failed before the program was started, as in env(1) and timeout(1).
pub const LAUNCHER_FAILED: u8 = 125;
/// The program can't be executed (POSIX, 2.8.2).
pub const NOT_EXECUTABLE: u8 = 126;
/// There is no such program (POSIX, 2.8.2).
pub const NOT_FOUND: u8 = 127;

//! The exit codes of a launcher whose program does not run.

/// `exec` or `jail` failed before the program was started. env(1) and timeout(1) use the same code.
pub const LAUNCHER_FAILED: u8 = 125;
/// The program can't be executed (POSIX, 2.8.2).
pub const NOT_EXECUTABLE: u8 = 126;
/// There is no such program (POSIX, 2.8.2).
pub const NOT_FOUND: u8 = 127;

//! Execution of the program that `exec` and `jail` set up: this process becomes the program.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use peername_daemon::usage::UsageError;
use peername_daemon::usage::error_text::with_causes;
use peername_sys::process::launch::become_program;
use peername_sys::process::launch::exit_code::LAUNCHER_FAILED;
use peername_sys::process::stderr::write_line;

/// The command with these words: the program and its arguments.
pub(crate) fn command(words: &[OsString]) -> Command {
    let mut words = words.iter();
    let mut command = Command::new(words.next().cloned().unwrap_or_default());
    command.args(words);
    command
}

/// Becomes the program (execve(2)). Returns only if that fails: prints the error, and returns its exit code.
pub(crate) fn execute(command: Command) -> ExitCode {
    ExitCode::from(try_execute(command))
}

/// As [`execute`], with the exit code as a number.
pub(crate) fn try_execute(command: Command) -> u8 {
    let is_for_shell = is_for_shell(&command.get_program().to_string_lossy());
    let error = become_program(command);
    write_line(format_args!("peername: {error}"));
    if is_for_shell {
        write_line("peername: a line for a shell needs `sh -c`, as in -- sh -c 'cd /tmp && make'");
    }
    error.exit_code()
}

/// Whether the name of a missing program is in truth a command line for a shell, or a shell's builtin.
fn is_for_shell(program: &str) -> bool {
    let builtins = ["cd", "export", "set", "source", ".", "ulimit", "umask"];
    program.contains(char::is_whitespace) || builtins.contains(&program)
}

/// Prints the error of a start that has failed and returns [`LAUNCHER_FAILED`]. [`UsageError`] is passed on, which has an exit code
/// of its own.
pub(crate) fn exit_code(started: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    match started {
        Err(error) if !error.is::<UsageError>() => {
            write_line(format_args!("peername: {}", with_causes(&error)));
            Ok(ExitCode::from(LAUNCHER_FAILED))
        }
        other => other,
    }
}

//! Replaces this process by a program (execve(2)), and the exit codes where that fails.

pub mod exit_code;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The program could not be executed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", name.display(), self.why())]
pub struct ExecError {
    name: OsString,
    source: io::Error,
}

/// Replaces this process by `command`, which keeps the process id, the parent, the terminal and every descriptor that is
/// not close-on-exec; so the program's exit code is that of this process. Returns only if execve(2) fails.
pub fn become_program(mut command: Command) -> ExecError {
    let source = match command.exec() {
        error if error.kind() == ErrorKind::PermissionDenied && is_missing_in_path(&command) => {
            ErrorKind::NotFound.into()
        }
        error => error,
    };
    ExecError {
        name: command.get_program().to_owned(),
        source,
    }
}

/// Whether the program is to be found by the search path, and no directory of the path has it. Then execvp(3) fails with EACCES
/// rather than ENOENT if it may not search one of the directories.
fn is_missing_in_path(command: &Command) -> bool {
    let name = command.get_program();
    if name.as_bytes().contains(&b'/') {
        return false;
    }
    let path = match command.get_envs().find(|(name, _)| *name == "PATH") {
        Some((_, value)) => value.map(OsStr::to_owned),
        None => env::var_os("PATH"),
    };
    let path = path.unwrap_or_else(|| DEFAULT_PATH.into());
    !env::split_paths(&path).any(|directory| directory.join(name).exists())
}

impl ExecError {
    fn why(&self) -> String {
        match self.source.kind() {
            // execvp(3) searches for a name without `/`, and does not report which file it found.
            ErrorKind::NotFound if !self.name.as_bytes().contains(&b'/') => {
                "not in PATH, or its interpreter is missing".to_owned()
            }
            ErrorKind::NotFound if !Path::new(&self.name).exists() => "no such program".to_owned(),
            ErrorKind::NotFound => "its interpreter is missing".to_owned(),
            ErrorKind::PermissionDenied if Path::new(&self.name).is_dir() => {
                "a folder, not a program".to_owned()
            }
            _ => self.source.to_string(),
        }
    }

    /// The exit code of shells and env(1) for this error: 127 if there is no such program, else 126.
    pub fn exit_code(&self) -> u8 {
        match self.source.kind() {
            ErrorKind::NotFound => exit_code::NOT_FOUND,
            _ => exit_code::NOT_EXECUTABLE,
        }
    }
}

/// Where execvp(3) searches without PATH.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_is_distinguished_from_a_missing_interpreter() {
        // The current directory is not searched.
        assert!(Path::new("Cargo.toml").exists());
        let script = std::env::temp_dir().join(format!("launch-{}", std::process::id()));
        std::fs::write(&script, "#!/nonexistent\n").unwrap();
        let by_path = script.display().to_string();
        for (name, why) in [
            ("Cargo.toml", "not in PATH, or its interpreter is missing"),
            ("/nonexistent", "no such program"),
            (&by_path, "its interpreter is missing"),
        ] {
            let error = ExecError {
                name: name.into(),
                source: ErrorKind::NotFound.into(),
            };
            assert_eq!(error.to_string(), format!("{name}: {why}"));
        }
        std::fs::remove_file(script).unwrap();
    }

    /// For such a program, execvp(3) fails with EACCES instead of ENOENT if it may not search one of the directories.
    #[test]
    fn program_in_no_directory_of_the_path_is_missing() {
        let is_missing = |name: &str, path: &str| {
            let mut command = Command::new(name);
            command.env("PATH", path);
            is_missing_in_path(&command)
        };
        assert!(is_missing("no-such-program", "/nonexistent:/bin"));
        assert!(!is_missing("sh", "/nonexistent:/bin"));
        assert!(!is_missing("/nonexistent", "/bin"));
        // Without PATH the current directory is not searched either.
        for (name, expected) in [("sh", false), ("Cargo.toml", true)] {
            let mut command = Command::new(name);
            command.env_remove("PATH");
            assert_eq!(is_missing_in_path(&command), expected, "{name}");
        }
    }
}

//! Replaces this process by the program (execve(2)).

pub mod exit_code;

use std::ffi::OsString;
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
    let source = command.exec();
    ExecError {
        name: command.get_program().to_owned(),
        source,
    }
}

impl ExecError {
    fn why(&self) -> String {
        match self.source.kind() {
            // Of a name without `/`, which execvp(3) searches, no path is known.
            ErrorKind::NotFound if !self.name.as_bytes().contains(&b'/') => {
                "not in PATH, or its interpreter is missing".to_owned()
            }
            ErrorKind::NotFound if !Path::new(&self.name).exists() => "no such program".to_owned(),
            ErrorKind::NotFound => "its interpreter is missing".to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_is_told_from_a_missing_interpreter() {
        // A file in the current directory is not searched for.
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
}

//! Replaces this process by a program (execve(2)), and has the exit codes for a failure.

pub mod exit_code;
mod inherited_signals;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program could not be executed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", name.display(), self.why())]
pub struct ExecError {
    name: OsString,
    /// The file that was named, or found by the search path; `None` if no directory of the path has one.
    file: Option<PathBuf>,
    source: io::Error,
}

/// Replaces this process by `command`, which keeps the process id, the parent, the terminal and every descriptor that is
/// not close-on-exec; so the program's exit code is that of this process. The program ignores SIGPIPE and SIGCHLD if the parent
/// of this process does. Returns only if execve(2) fails.
pub fn become_program(mut command: Command) -> ExecError {
    inherited_signals::restore_in(&mut command);
    let error = command.exec();
    let file = find(&command);
    let source = match error.kind() {
        // execvp(3) fails with EACCES rather than ENOENT if it may not search one of the directories.
        ErrorKind::PermissionDenied if file.is_none() => ErrorKind::NotFound.into(),
        _ => error,
    };
    ExecError {
        name: command.get_program().to_owned(),
        file,
        source,
    }
}

/// Finds the program's file, which execvp(3) does not report: its name if that is a path, else the first file of this name in
/// the search path.
fn find(command: &Command) -> Option<PathBuf> {
    let name = command.get_program();
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let path = match command.get_envs().find(|(name, _)| *name == "PATH") {
        Some((_, value)) => value.map(OsStr::to_owned),
        None => env::var_os("PATH"),
    };
    let path = path.unwrap_or_else(|| DEFAULT_PATH.into());
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| file.exists())
}

/// Whether the first line of a script ends in CR and LF: the kernel takes the CR for a part of the interpreter's name.
fn ends_in_cr(file: &Path) -> bool {
    let mut first_line = Vec::new();
    let read = File::open(file)
        .map(|file| BufReader::new(file.take(FIRST_LINE)))
        .and_then(|mut file| file.read_until(b'\n', &mut first_line));
    read.is_ok() && first_line.starts_with(b"#!") && first_line.ends_with(b"\r\n")
}

/// Whether no user may execute the file.
fn lacks_execute_bits(file: &Path) -> bool {
    let metadata = file.metadata();
    metadata.is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o111 == 0)
}

impl ExecError {
    fn why(&self) -> String {
        let Some(file) = &self.file else {
            return match self.source.kind() {
                ErrorKind::NotFound => "no such program in PATH".to_owned(),
                _ => self.source.to_string(),
            };
        };
        let shown = file.display();
        match self.source.kind() {
            ErrorKind::NotFound if !file.exists() => "no such program".to_owned(),
            ErrorKind::NotFound if ends_in_cr(file) => {
                format!("its first line ends in CR: sed -i 's/\\r$//' '{shown}'")
            }
            ErrorKind::NotFound => "its interpreter is missing".to_owned(),
            ErrorKind::PermissionDenied if file.is_dir() => "a folder, not a program".to_owned(),
            ErrorKind::PermissionDenied if lacks_execute_bits(file) => {
                format!("not an executable file: chmod +x '{shown}'")
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
/// Bytes of the line that the kernel reads (BINPRM_BUF_SIZE, linux/binfmts.h).
const FIRST_LINE: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_is_distinguished_from_a_missing_interpreter() {
        // The current directory is not searched.
        assert!(Path::new("Cargo.toml").exists());
        let script = tempfile::NamedTempFile::new().unwrap();
        let by_path = script.path().display().to_string();
        let (missing, denied) = (ErrorKind::NotFound, ErrorKind::PermissionDenied);
        let no_bits = format!("not an executable file: chmod +x '{by_path}'");
        let with_cr = format!("its first line ends in CR: sed -i 's/\\r$//' '{by_path}'");
        for (name, content, kind, why) in [
            ("Cargo.toml", "", missing, "no such program in PATH"),
            ("/nonexistent", "", missing, "no such program"),
            (&by_path, "#!/no\n", missing, "its interpreter is missing"),
            (&by_path, "#!/bin/sh\r\n", missing, &with_cr),
            (&by_path, "", denied, &no_bits),
            ("/etc/", "", denied, "a folder, not a program"),
        ] {
            std::fs::write(&script, content).unwrap();
            let error = ExecError {
                name: name.into(),
                file: find(&Command::new(name)),
                source: kind.into(),
            };
            assert_eq!(error.to_string(), format!("{name}: {why}"));
        }
    }

    /// For a program in no directory of PATH, execvp(3) fails with EACCES instead of ENOENT if it may not search one of the
    /// directories.
    #[test]
    fn program_in_no_directory_of_the_path_is_missing() {
        let is_missing = |name: &str, path: &str| {
            let mut command = Command::new(name);
            command.env("PATH", path);
            find(&command).is_none()
        };
        assert!(is_missing("no-such-program", "/nonexistent:/bin"));
        assert!(!is_missing("sh", "/nonexistent:/bin"));
        assert!(!is_missing("/nonexistent", "/bin"));
        // Without PATH the current directory is not searched either.
        for (name, expected) in [("sh", false), ("Cargo.toml", true)] {
            let mut command = Command::new(name);
            command.env_remove("PATH");
            assert_eq!(find(&command).is_none(), expected, "{name}");
        }
    }
}

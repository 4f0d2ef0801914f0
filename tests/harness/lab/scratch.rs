//! A temporary directory for one test's configuration files, logs and databases.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary directory: empty at first, removed when dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory that every user may write, since some servers give up root before they read their
    /// files.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "peername-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a scratch directory");
        fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("chmod");
        Self(path)
    }

    /// The path of a file in it, which need not exist.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Like [`Self::path`], as a string for configuration files and arguments.
    pub(crate) fn path_text(&self, name: &str) -> String {
        self.path(name).to_str().expect("a UTF-8 path").to_owned()
    }

    /// Writes a file and returns its path as text.
    pub(crate) fn write(&self, name: &str, content: &str) -> String {
        fs::write(self.path(name), content).expect("a scratch file");
        self.path_text(name)
    }

    /// Writes a script that may be executed, and returns its path as text.
    pub(crate) fn write_program(&self, name: &str, content: &str) -> String {
        let path = self.write(name, content);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("chmod");
        path
    }

    /// Reads what a file holds so far; empty if it does not exist yet.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A server that is exiting may still create a file; it stays in /tmp then, which is no reason to fail
        // a test.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Appends a line to a file that several threads write.
pub(crate) fn append_line(path: &Path, line: &str) {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .expect("an append");
}

//! Finds the libraries that are loaded into programs (LD_PRELOAD), and checks their version, owner and mode.

use std::env;
use std::ffi::OsString;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::table::SharedTable;

/// A library that is loaded into programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// `libpeername.so`: accept(2) and getpeername(2) that return the client.
    Accept,
    /// `libpeername_connect.so`: connect(2) that sends a header first.
    Connect,
}

impl Library {
    /// Finds the library that belongs to this binary: in `lib/peername/` beside its `bin/`, as installed, or in the
    /// binary's own directory, as in a build tree.
    pub fn find(self) -> Result<PathBuf, LibraryError> {
        let binary = env::current_exe()
            .and_then(fs::canonicalize)
            .map_err(LibraryError::Binary)?;
        let directory = binary.parent().unwrap_or_else(|| Path::new("/"));
        let installed = directory
            .parent()
            .unwrap_or(directory)
            .join("lib/peername")
            .join(self.name());
        let candidates = [installed, directory.join(self.name())];
        match candidates.iter().find(|path| path.exists()) {
            Some(path) => self.check(path).map(|()| path.clone()),
            None => Err(LibraryError::Missing {
                library: self,
                candidates,
            }),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Accept => "libpeername.so",
            Self::Connect => "libpeername_connect.so",
        }
    }

    /// The exported symbol that has the version of the library's interface in its name (`crates/preload`): of the table, or of
    /// the environment variables.
    fn version_symbol(self) -> &'static [u8] {
        match self {
            Self::Accept => b"\0peername_preload_7\0",
            Self::Connect => b"\0peername_connect_1\0",
        }
    }

    /// Checks owner and mode, because a user who can change the library can change the program; then the version.
    fn check(self, path: &Path) -> Result<(), LibraryError> {
        let unreadable = |source| LibraryError::Unreadable {
            path: path.to_owned(),
            source,
        };
        let metadata = fs::metadata(path).map_err(unreadable)?;
        let user = peername_sys::process::user::effective_uid();
        let is_owner_trusted = [0, user].contains(&metadata.uid());
        if !is_owner_trusted || metadata.mode() & GROUP_OR_OTHERS_WRITE != 0 {
            return Err(LibraryError::Writable(path.to_owned()));
        }
        let content = fs::read(path).map_err(unreadable)?;
        let symbol = self.version_symbol();
        if !content.windows(symbol.len()).any(|part| part == symbol) {
            return Err(LibraryError::OtherVersion {
                path: path.to_owned(),
                alternative: match self {
                    Self::Accept => ", or add --mode notify, which needs none",
                    Self::Connect => "",
                },
            });
        }
        // Spaces and colons separate the paths of LD_PRELOAD (ld.so(8)).
        if path.to_string_lossy().contains([' ', ':']) {
            return Err(LibraryError::Unlistable(path.to_owned()));
        }
        Ok(())
    }
}

impl Display for Library {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Sets the variables of [`Library::Accept`] in the environment of `command`: the path of the library for ld.so(8), and the
/// path of the table for the library.
pub fn set_environment(command: &mut Command, library: &Path, table: &SharedTable) {
    command.env("LD_PRELOAD", ld_preload_value(library));
    command.env("PEERNAME_TABLE", table.path());
}

/// The value of LD_PRELOAD with this library first, followed by the libraries that are listed there already.
pub(crate) fn ld_preload_value(library: &Path) -> OsString {
    let mut libraries = library.as_os_str().to_owned();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        libraries.push(":");
        libraries.push(others);
    }
    libraries
}

/// An error returned by [`Library::find`].
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The path of this binary can't be determined.
    #[error("can't determine where this program is installed (/proc/self/exe): {0}")]
    Binary(io::Error),
    /// The library is in none of the candidate paths.
    #[error(
        "{library} is neither {} nor {}; install it beside the binary (`make libraries` in a source tree){}",
        candidates[0].display(), candidates[1].display(),
        if *library == Library::Accept { ", or use --mode notify" } else { "" }
    )]
    Missing {
        /// The library.
        library: Library,
        /// The candidate paths.
        candidates: [PathBuf; 2],
    },
    /// The library can't be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The library.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Other users can change it.
    #[error("{}: another user can change this library, and with it the program: it must belong to root or to you, \
             and not be writable by group or others", .0.display())]
    Writable(PathBuf),
    /// The library is of another version.
    #[error("{}: not the library of this version; install it and the binary from one `make build` or release{alternative}", path.display())]
    OtherVersion {
        /// The library.
        path: PathBuf,
        /// An option that needs no library, as the end of the message.
        alternative: &'static str,
    },
    /// The library's path contains a separator of LD_PRELOAD.
    #[error("{}: LD_PRELOAD can't hold a path with a space or a colon; install peername elsewhere", .0.display())]
    Unlistable(PathBuf),
}

/// S_IWGRP and S_IWOTH (inode(7)).
const GROUP_OR_OTHERS_WRITE: u32 = 0o022;

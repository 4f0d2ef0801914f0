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
    /// `libpeername.so`: accept(2) and getpeername(2) that know the client.
    Accept,
    /// `libpeername_connect.so`: connect(2) that sends a header first.
    Connect,
}

impl Library {
    /// Finds the library that belongs to this binary: in `lib/peername/` beside its `bin/`, as installed, or in the
    /// binary's own directory, as in a build tree.
    ///
    /// # Errors
    ///
    /// [`LibraryError`]: it is missing or unreadable, other users can change it, or it is of another version.
    pub fn find(self) -> Result<PathBuf, LibraryError> {
        let binary = env::current_exe()
            .and_then(fs::canonicalize)
            .map_err(LibraryError::Binary)?;
        let own = binary.parent().unwrap_or_else(|| Path::new("/"));
        let installed = own
            .parent()
            .unwrap_or(own)
            .join("lib/peername")
            .join(self.name());
        let candidates = [installed, own.join(self.name())];
        match candidates.iter().find(|path| path.exists()) {
            Some(path) => self.check(path).map(|()| path.clone()),
            None => Err(LibraryError::Missing {
                library: self,
                places: candidates,
            }),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Accept => "libpeername.so",
            Self::Connect => "libpeername_connect.so",
        }
    }

    /// The symbol with the version of the interface (`crates/preload`): of the table that the library reads, or of the
    /// variables.
    fn version_symbol(self) -> &'static [u8] {
        match self {
            Self::Accept => b"\0peername_preload_5\0",
            Self::Connect => b"\0peername_connect_1\0",
        }
    }

    /// Checks owner and mode, because a user who can change the library can change the program; then the version.
    fn check(self, path: &Path) -> Result<(), LibraryError> {
        let unreadable = |source| LibraryError::Unreadable {
            path: path.to_owned(),
            source,
        };
        let about = fs::metadata(path).map_err(unreadable)?;
        let user = peername_sys::process::user::effective_uid();
        if ![0, user].contains(&about.uid()) || about.mode() & 0o022 != 0 {
            return Err(LibraryError::Writable(path.to_owned()));
        }
        let content = fs::read(path).map_err(unreadable)?;
        let symbol = self.version_symbol();
        let has_version = content.windows(symbol.len()).any(|part| part == symbol);
        // Spaces and colons separate the paths of LD_PRELOAD (ld.so(8)).
        let listable = !path.to_string_lossy().contains([' ', ':']);
        match (has_version, listable) {
            (false, _) => Err(LibraryError::Other {
                path: path.to_owned(),
                alternative: match self {
                    Self::Accept => ", or add --mode notify, which needs none",
                    Self::Connect => "",
                },
            }),
            (_, false) => Err(LibraryError::Unlistable(path.to_owned())),
            _ => Ok(()),
        }
    }
}

impl Display for Library {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Sets the variables of [`Library::Accept`] in the environment of `command`: where ld.so(8) finds the library, and where
/// the library finds the table.
pub fn set_environment(command: &mut Command, library: &Path, table: &SharedTable) {
    command.env("LD_PRELOAD", preloaded(library));
    command.env("PEERNAME_TABLE", table.path());
}

/// The value of LD_PRELOAD with this library first, followed by the libraries that are listed there already.
pub(crate) fn preloaded(library: &Path) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

/// Why the library can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The path of this binary can't be determined.
    #[error("can't determine where this program is installed (/proc/self/exe): {0}")]
    Binary(io::Error),
    /// The library is in none of the candidate paths.
    #[error(
        "{library} is neither {} nor {}; install it beside the binary (`make libraries` in a source tree){}",
        places[0].display(), places[1].display(),
        if *library == Library::Accept { ", or use --mode notify" } else { "" }
    )]
    Missing {
        /// The library.
        library: Library,
        /// The candidate paths.
        places: [PathBuf; 2],
    },
    /// It can't be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The library.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Other users can change it.
    #[error("{}: another user can change this library, and with it the program: it must belong to root or to you, \
             and not be writable by group or others", .0.display())]
    Writable(PathBuf),
    /// It is of another version.
    #[error("{}: not the library of this version; install it and the binary from one `make build` or release{alternative}", path.display())]
    Other {
        /// The library.
        path: PathBuf,
        /// What does without it.
        alternative: &'static str,
    },
    /// Its path contains a separator of LD_PRELOAD.
    #[error("{}: LD_PRELOAD can't hold a path with a space or a colon; install peername elsewhere", .0.display())]
    Unlistable(PathBuf),
}

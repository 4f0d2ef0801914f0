//! The libraries that are loaded into programs (LD_PRELOAD): where they are, and that they are ours.

use std::env;
use std::ffi::OsString;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A library that programs are started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// `libpeername.so`: accept(2) and getpeername(2) that know the client.
    Accept,
    /// `libpeername_connect.so`: connect(2) that begins with a header.
    Connect,
}

impl Library {
    /// Finds the one that belongs to this binary: beside it as it is installed (`bin/`, `lib/peername/`),
    /// or in its own directory, as in a build tree.
    ///
    /// # Errors
    ///
    /// [`LibraryError`].
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

    /// The symbol by which the library says which version it is (`crates/preload`): of the table that it
    /// reads, or the variables.
    fn mark(self) -> &'static [u8] {
        match self {
            Self::Accept => b"\0peername_preload_4\0",
            Self::Connect => b"\0peername_connect_1\0",
        }
    }

    /// Checks owner and mode: a user who can change the library can change the program.
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
        let has_mark = content
            .windows(self.mark().len())
            .any(|part| part == self.mark());
        // The dynamic linker takes spaces and colons for the end of a name (ld.so(8)).
        let listable = !path.to_string_lossy().contains([' ', ':']);
        match (has_mark, listable) {
            (false, _) => Err(LibraryError::Other(path.to_owned())),
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

/// The value of LD_PRELOAD with this library first; what was to be preloaded stays so.
pub(crate) fn preloaded(library: &Path) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

/// Why there is no library to be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// Where this binary is can't be found out.
    #[error("where this program is installed can't be found out (/proc/self/exe): {0}")]
    Binary(io::Error),
    /// It is nowhere.
    #[error(
        "{library} is neither {} nor {}; install it beside the binary (`make libraries` in a source tree){}",
        places[0].display(), places[1].display(),
        if *library == Library::Accept { ", or use --mode notify" } else { "" }
    )]
    Missing {
        /// The library.
        library: Library,
        /// Where it was looked for.
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
    /// Others may change it.
    #[error("{}: somebody else may change it, and with it the program: it must belong to root or to you, \
             and not be writable by group or others", .0.display())]
    Writable(PathBuf),
    /// It is of another version.
    #[error("{}: not of this version; install library and binary from one build", .0.display())]
    Other(PathBuf),
    /// Its path has a character that ends a name.
    #[error("{}: LD_PRELOAD can't hold a path with a space or a colon; install peername elsewhere", .0.display())]
    Unlistable(PathBuf),
}

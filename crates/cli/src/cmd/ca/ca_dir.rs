//! The directory of the authority.

use std::env::{self, var_os};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use peername_daemon::usage::UsageError;
use peername_intercept::ca::CaError;
use peername_observe::shell::quote;
use peername_sys::process::user::effective_uid;

/// The option `--ca`, which `peername intercept` has, too.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub(crate) struct CaDir {
    /// The directory of the authority [default: $STATE_DIRECTORY/ca, else $XDG_STATE_HOME/peername/ca, else
    /// ~/.local/state/peername/ca]
    #[arg(long, value_name = "DIR")]
    ca: Option<PathBuf>,
}

impl CaDir {
    /// The value of a `--ca` that a command declares itself.
    pub(crate) fn new(ca: Option<PathBuf>) -> Self {
        Self { ca }
    }

    /// The directory given, if any.
    pub(crate) fn given(&self) -> Option<&Path> {
        self.ca.as_deref()
    }

    /// The directory given, or the default.
    pub(crate) fn path(&self) -> Result<PathBuf, UsageError> {
        self.ca.clone().or_else(default_dir).ok_or_else(|| {
            UsageError("HOME is not set: give --ca DIR, the directory of the authority".to_owned())
        })
    }

    /// The option that names the same directory, for commands in messages; empty for the default.
    pub(crate) fn as_option(&self) -> String {
        match &self.ca {
            Some(dir) => format!(" --ca {}", quote(dir)),
            None => String::new(),
        }
    }
}

/// The default directory: for a service the one that systemd created for it (systemd.exec(5), StateDirectory=), else one
/// of the user's (XDG base directory specification: paths that are not absolute are ignored).
fn default_dir() -> Option<PathBuf> {
    // A list, if the unit has several directories.
    let state_dir = var_os("STATE_DIRECTORY")
        .and_then(|list| env::split_paths(&list).next())
        .filter(|dir| dir.is_absolute());
    if let Some(state_dir) = state_dir {
        return Some(state_dir.join("ca"));
    }
    let user_dir = absolute_path_in("XDG_STATE_HOME")
        .or_else(|| Some(absolute_path_in("HOME")?.join(".local/state")))?;
    Some(user_dir.join("peername/ca"))
}

/// The value of an environment variable, if it is an absolute path.
fn absolute_path_in(variable: &str) -> Option<PathBuf> {
    var_os(variable)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
}

/// Adds what to do to the error of a directory that may not be read or written.
pub(crate) fn suggest_ca_option(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref() {
        Some(CaError::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            let user = effective_uid();
            anyhow!(
                "{error}; it is closed to user {user}: run as its owner, or give another --ca DIR"
            )
        }
        _ => error,
    }
}

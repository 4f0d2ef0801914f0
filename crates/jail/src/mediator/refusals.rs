//! What standard error says of Unix sockets to which connections are refused.

use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use peername_sys::process::stderr::try_write_line;

/// The refused connections that have a line. Programs try many sockets in vain (nscd, syslog, D-Bus), so by default only those
/// have one that a variable of the environment names, such as SSH_AUTH_SOCK and DOCKER_HOST.
#[derive(Debug)]
pub enum RefusalLog {
    /// Each refused connection, when it happens.
    All,
    /// The sockets that variables name, at the end.
    Named(Vec<NamedSocket>),
    /// None.
    Off,
}

/// A socket that a variable of the environment names.
#[derive(Debug)]
pub struct NamedSocket {
    variable: String,
    path: PathBuf,
    /// The value of `--allow-unix` that allows the socket, for a shell.
    option_value: String,
    is_refused: bool,
}

impl RefusalLog {
    /// Finds the paths that variables of this process's environment name.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::Named(NamedSocket::all().collect())
    }

    /// Records a refused connection to the socket at this path.
    pub(super) fn record(&mut self, path: &Path) {
        match self {
            Self::All => {
                try_write_line(&format!(
                    "peername: refused: connecting to the Unix socket {path:?} (--allow-unix allows it)"
                ));
            }
            Self::Named(sockets) => {
                if let Some(socket) = sockets.iter_mut().find(|socket| socket.path == path) {
                    socket.is_refused = true;
                }
            }
            Self::Off => {}
        }
    }

    /// Writes the lines that are left at the end.
    pub(super) fn finish(&self) {
        let Self::Named(sockets) = self else {
            return;
        };
        for socket in sockets.iter().filter(|socket| socket.is_refused) {
            let NamedSocket {
                variable,
                path,
                option_value,
                ..
            } = socket;
            try_write_line(&format!(
                "peername: refused: the Unix socket {path:?} of {variable}: --allow-unix {option_value} allows it"
            ));
        }
    }
}

impl NamedSocket {
    /// The value of `--allow-unix` for the socket at this path, for a shell, if a variable of this process's environment names
    /// the socket: its path may be another one after the next login.
    #[must_use]
    pub fn option_value_of(path: &Path) -> Option<String> {
        // PWD may name a directory of sockets.
        if !path.metadata().ok()?.file_type().is_socket() {
            return None;
        }
        Self::all()
            .find(|socket| socket.path == path)
            .map(|socket| socket.option_value)
    }

    /// The paths that variables of this process's environment name, sockets or not.
    fn all() -> impl Iterator<Item = Self> {
        std::env::vars_os().filter_map(Self::new)
    }

    /// Returns the path in the value of a variable: all of it, or what follows `unix://` or `unix:`.
    fn new((name, value): (OsString, OsString)) -> Option<Self> {
        let (variable, value) = (name.into_string().ok()?, value.into_string().ok()?);
        let after_scheme = ["unix://", "unix:"]
            .into_iter()
            .find_map(|scheme| value.strip_prefix(scheme));
        let path = PathBuf::from(after_scheme.unwrap_or(&value));
        let option_value = match after_scheme {
            Some(path) => format!("'{}'", path.replace('\'', r"'\''")),
            None => format!("\"${variable}\""),
        };
        path.is_absolute().then_some(Self {
            variable,
            path,
            option_value,
            is_refused: false,
        })
    }
}

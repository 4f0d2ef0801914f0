//! What standard error says of Unix sockets to which connections are refused.

use std::ffi::OsString;
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
        Self::Named(std::env::vars_os().filter_map(NamedSocket::new).collect())
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
    /// Returns the path in the value of a variable: all of it, or what follows `unix://` or `unix:`.
    fn new((name, value): (OsString, OsString)) -> Option<Self> {
        let (variable, value) = (name.into_string().ok()?, value.into_string().ok()?);
        let after_scheme = ["unix://", "unix:"]
            .into_iter()
            .find_map(|scheme| value.strip_prefix(scheme));
        let path = PathBuf::from(after_scheme.unwrap_or(&value));
        let option_value = match after_scheme {
            Some(path) => format!("{path:?}"),
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

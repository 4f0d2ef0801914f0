//! Where the authority is kept.

use std::env::var_os;
use std::path::PathBuf;

use crate::usage::Usage;

/// `--ca`, also of `peername intercept`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CaDir {
    /// Where the authority is kept [default: $STATE_DIRECTORY/ca, else $XDG_STATE_HOME/peername/ca, else
    /// ~/.local/state/peername/ca]
    #[arg(long, value_name = "DIR")]
    ca: Option<PathBuf>,
}

impl CaDir {
    /// What `--ca` says where a command has it by another declaration.
    pub(crate) fn new(ca: Option<PathBuf>) -> Self {
        Self { ca }
    }

    /// The directory given, or the default.
    ///
    /// # Errors
    /// [`Usage`] if none is given and the environment says nothing.
    pub(crate) fn path(&self) -> Result<PathBuf, Usage> {
        let given = self.ca.clone();
        given
            .or_else(default)
            .ok_or_else(|| Usage("--ca DIR: neither it nor HOME is set".to_owned()))
    }

    /// What has to be repeated to mean the same one.
    pub(crate) fn as_option(&self) -> String {
        match &self.ca {
            Some(dir) => format!(" --ca {}", super::shell::quoted(&dir.to_string_lossy())),
            None => String::new(),
        }
    }
}

/// A service has the directory that systemd made for it (systemd.exec(5), StateDirectory=), every other process
/// one of its user's (XDG base directory specification: paths that are not absolute are ignored).
fn default() -> Option<PathBuf> {
    let set = |name| {
        var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let of_service = var_os("STATE_DIRECTORY").and_then(|list| std::env::split_paths(&list).next());
    let of_service = of_service
        .filter(|path| path.is_absolute())
        .map(|dir| dir.join("ca"));
    let of_user = || set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
    of_service.or_else(|| Some(of_user()?.join("peername/ca")))
}

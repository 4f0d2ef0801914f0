//! Confines a listening command after its start: it may read a few directories, and make the system calls of a server.
//!
//! A command opens what needs a privilege, drops the privileges, confines itself, and only then starts threads. Everything
//! that a peer sends is handled by confined threads.

mod calls;
mod files;
mod needs;

use std::path::PathBuf;

use peername_sys::Result;
use peername_sys::process::confine::files::AllowedFiles;
use peername_sys::process::confine::{
    files as landlock, require_single_thread, system_calls as seccomp,
};

pub use needs::Needs;

/// The confinement that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// The version of Landlock; `None` if the kernel has none.
    pub landlock: Option<u32>,
    /// Whether a filter of system calls is in force.
    pub seccomp: bool,
    /// The files and directories that may be read.
    pub readable: Vec<PathBuf>,
}

impl Needs {
    /// The files that may be opened with these needs.
    pub fn allowed_files(&self) -> AllowedFiles {
        files::allowed(self)
    }

    /// Confines this process, irrevocably. Landlock or seccomp is left out where the kernel lacks it.
    ///
    /// # Errors
    ///
    /// The process has more than one thread, or the kernel refuses the rules.
    pub fn confine(&self) -> Result<Confinement> {
        require_single_thread()?;
        let allowed = self.allowed_files();
        Ok(Confinement {
            landlock: landlock::confine(&allowed)?,
            // Last: the filter denies the calls that set up Landlock.
            seccomp: calls::allowed(self).compile()?.enforce()?,
            readable: allowed.read,
        })
    }
}

/// Whether this kernel can filter system calls.
pub fn is_seccomp_supported() -> bool {
    seccomp::is_supported()
}

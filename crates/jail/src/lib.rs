//! `peername jail`: a program whose only way out is the interceptor.
//!
//! ```text
//!   outside                        │ jail: `local 0.0.0.0/0 dev lo`, `local ::/0 dev lo`
//!                                  │
//!   origin ◀── interceptor ◀── listening sockets on 80, 443 … ◀── program (this process)
//!                  │ (opened inside, passed outside)     └──▶ name server on 53, any address
//! ```
//!
//! In the jail's network namespace every address is local, so a connection to any address arrives at a listener inside, with
//! its original destination, and a port without a listener is refused. There is no route, no interface and no rule by which
//! a packet could leave: the jail is closed by construction.
//!
//! The program is executed by this process, so that it keeps the process id, the parent, the terminal and the standard
//! streams; exit code, signals and job control are its own.
//!
//! Two user namespaces, one in the other. The first owns the network namespace and the mounts that cover files. The program
//! runs in the second, which owns neither: there even root has no capability over the network, and can't unmount what
//! covers a file (mount_namespaces(7)).
//!
//! | module | |
//! |---|---|
//! | [`network`] | the namespaces, and the sockets that the interceptor gets |
//! | [`files`] | what the program sees instead of the host's trusted authorities, name servers and sockets |
//! | [`mediator`] | makes connect(2) and bind(2) for the program, to Unix sockets only if it may connect to them |
//! | [`host_servers`] | the servers of this host's loopback |
//! | [`confine`] | the last steps before the program is executed |
//! | [`forbidden`] | explains why this host refuses the namespaces of a jail |
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use peername_sys::SyscallError;

pub mod confine;
pub mod files;
pub mod forbidden;
pub mod host_servers;
pub mod mediator;
pub mod network;

/// Why the program can't be jailed. The program was not executed.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    /// This host does not allow the namespaces of a jail to this user, or no more of them.
    #[error("{failed}: this host does not let this user make the namespaces of a jail. {fix}")]
    Forbidden {
        /// The call that failed.
        failed: SyscallError,
        /// What to do about it.
        fix: String,
    },
    /// This is in a jail, which denies to make another one.
    #[error(
        "{0}: this command runs in a jail of peername, in which mounts can't be changed, and so no other jail can be made: \
         `peername jail --allow-mounts` for the outer one allows that"
    )]
    Nested(SyscallError),
    /// The jail's network can't be configured.
    #[error("the jail's network: {0}")]
    Network(SyscallError),
    /// A port of the jail can't be listened on.
    #[error("listening on port {port} in the jail: {failed}")]
    Listen {
        /// The port.
        port: u16,
        /// The call that failed.
        failed: SyscallError,
    },
    /// A file or directory can't be covered.
    #[error("covering {}: {failed}", path.display())]
    Cover {
        /// The path.
        path: PathBuf,
        /// The call that failed.
        failed: SyscallError,
    },
    /// A path of `--hide` does not exist: what is created there later would not be hidden.
    #[error(
        "--hide {path}: there is no such file, and one that is made later would be seen: make it first (mkdir -p {path}), or hide the \
         directory above",
        path = .0.display()
    )]
    NothingToHide(PathBuf),
    /// The working directory is covered, and nothing is at its path any more.
    #[error("the working directory {}: {failed}", path.display())]
    WorkingDirectory {
        /// The path.
        path: PathBuf,
        /// The error of chdir(2).
        failed: std::io::Error,
    },
    /// A file that the jail needs can't be read.
    #[error("reading {}: {failed}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        failed: std::io::Error,
    },
    /// The directory of the jail's own files can't be created.
    #[error("creating a directory in {}: {failed}; TMPDIR may name another one", parent.display())]
    TemporaryDir {
        /// The system's directory for temporary files.
        parent: PathBuf,
        /// The error.
        failed: std::io::Error,
    },
    /// A file for the program can't be written.
    #[error("writing {}: {failed}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error.
        failed: std::io::Error,
    },
    /// The mediator of the program's sockets can't be started.
    #[error("the mediator of the program's sockets: {0}")]
    Mediator(SyscallError),
    /// The mediator has exited, after a line on standard error.
    #[error("the mediator of the program's sockets has exited")]
    MediatorExited,
    /// The last steps failed.
    #[error("confining the program: {0}")]
    Confine(SyscallError),
}

impl JailError {
    pub(crate) fn cover(path: &Path, failed: SyscallError) -> Self {
        Self::Cover {
            path: path.to_owned(),
            failed,
        }
    }

    pub(crate) fn read(path: &Path, failed: std::io::Error) -> Self {
        Self::Read {
            path: path.to_owned(),
            failed,
        }
    }

    pub(crate) fn write(path: &Path, failed: std::io::Error) -> Self {
        Self::Write {
            path: path.to_owned(),
            failed,
        }
    }
}

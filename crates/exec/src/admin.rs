//! The process that serves the admin endpoint, beside the program or the agent.
//!
//! It reads the counters in the shared table, and asks the supervisor by a socket pair whether its event loop runs. HTTP is not
//! parsed in the supervisor, because the supervisor may hold CAP_SYS_PTRACE, and all of the program's accepts may wait for it.

mod liveness_socket;

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use peername_sys::process::fork;
use peername_sys::process::pidfd::PidFd;
use peername_sys::{NameCall, SyscallError};

pub(crate) use liveness_socket::LivenessSocket;
pub use liveness_socket::{RELOAD_REFUSED, RELOADED};

/// The process of the admin endpoint, as seen from inside.
#[derive(Debug)]
pub struct AdminProcess {
    /// The listening sockets that it inherited.
    pub sockets: Vec<OwnedFd>,
    /// The liveness socket: the supervisor answers requests with a byte, and an agent reports its reloads ([`RELOADED`],
    /// [`RELOAD_REFUSED`]). End of file means that the supervisor has exited.
    pub supervisor: UnixStream,
    /// The program's first process.
    pub program: PidFd,
}

/// An error returned by [`start`].
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// A system call failed.
    #[error("starting the process of the admin endpoint: {0}")]
    Start(#[from] SyscallError),
    /// The process exited before it was ready.
    #[error("the process of the admin endpoint exited while it started; its message is above")]
    Ended,
}

/// Runs `serve` in a process of its own, with these listening sockets. Returns once that process is
/// [ready](AdminProcess::report_ready). The returned socket is for the supervisor
/// ([`SupervisorConfig::admin`](crate::notify::SupervisorConfig::admin)).
///
/// Call it before the supervisor is started, so that the filter of system calls does not apply to the new process. The calling
/// process must have one thread only.
pub fn start(
    sockets: Vec<OwnedFd>,
    serve: impl FnOnce(AdminProcess) -> u8,
) -> Result<OwnedFd, AdminError> {
    let (mut ours, theirs) = UnixStream::pair().call("socketpair(2)")?;
    let mut inherited = sockets;
    inherited.push(theirs.into());
    inherited.push(PidFd::current()?.into());
    fork::spawn_detached(inherited, |mut sockets| {
        fork::set_thread_name(c"peername-admin");
        let (Some(program), Some(supervisor)) = (sockets.pop(), sockets.pop()) else {
            return 1;
        };
        serve(AdminProcess {
            sockets,
            supervisor: supervisor.into(),
            program: program.into(),
        })
    })?;
    match ours.read(&mut [0; READY.len()]).call("read(2)")? {
        0 => Err(AdminError::Ended),
        _ => Ok(ours.into()),
    }
}

impl AdminProcess {
    /// Lets [`start`] return.
    ///
    /// # Errors
    ///
    /// EPIPE: the launcher has exited.
    pub fn report_ready(&mut self) -> io::Result<()> {
        self.supervisor.write_all(READY)
    }
}

const READY: &[u8] = b"+";

//! The messages of an upgrade. If its processes do not have the same [`VERSION`], the upgrade is refused.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use peername_proxy::udp::WorkerState;
use serde::{Deserialize, Serialize};

/// The version of the protocol, to be raised with each change of a message, except for a new field that may be absent. A
/// process of another version refuses the upgrade, and the old process goes on.
pub(crate) const VERSION: u32 = 3;

/// From the old process to the new one.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum ToSuccessor {
    /// First, with the old process's standard error.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// The subcommand.
        command: String,
    },
    /// Some sockets, each with its descriptor.
    Sockets(Vec<SocketInfo>),
    /// All sockets were sent.
    AllSockets,
    /// UDP sessions of a worker, each with its socket's descriptor.
    Sessions {
        /// As in [`SocketInfo::Udp`].
        group: usize,
        worker: usize,
        state: WorkerState,
    },
    /// All sessions were sent. [`ToPredecessor::Ready`] answers it.
    AllSessions,
    /// From now on the new process serves.
    Serve(Inheritance),
}

/// From the new process to the old one.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum ToPredecessor {
    /// These sockets were adopted.
    Adopted(Vec<SocketInfo>),
    /// Everything that can fail has succeeded.
    Prepared,
    /// All sessions were received.
    Ready,
    /// The start failed.
    Failed(String),
}

/// From the old process to its launcher.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum ToLauncher {
    /// Start the new process, with the descriptor as its end of the channel.
    Launch,
    /// Kill the new process, if it has not exited by itself after this time.
    Stop(Duration),
    /// Exit: the new process takes over.
    Release,
}

/// From the launcher.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum FromLauncher {
    /// The new process has started, with this process id.
    Started(u32),
    /// The new process has ended, or was not started, for this reason.
    Ended(String),
}

/// What the new process continues, beside sockets and sessions.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Inheritance {
    /// The id of the old process.
    pub(crate) pid: u32,
    /// The level of the log, if it was changed while the process ran.
    pub(crate) log_level: Option<String>,
    /// Whether `PUT /readyz` has set maintenance.
    pub(crate) in_maintenance: bool,
    /// Whether SIGHUP has come during the upgrade.
    pub(crate) must_reload: bool,
}

/// A socket that can be handed over, with its requested address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub enum SocketInfo {
    /// A worker's TCP listener.
    Tcp {
        /// The requested address.
        addr: SocketAddr,
        /// Whether TPROXY rules redirect connections to it.
        transparent: bool,
    },
    /// A UDP listener of one worker.
    Udp {
        /// The requested address.
        addr: SocketAddr,
        /// The group: listeners with common sessions.
        group: usize,
        /// The number of the worker.
        worker: usize,
        /// The group's dialect.
        dialect: String,
        /// Whether TPROXY rules redirect datagrams to it.
        transparent: bool,
    },
    /// A service manager's socket, with its label for messages.
    Given(String),
    /// The listener of `--admin`.
    Admin(String),
}

/// A socket for the new process.
pub type SharedSocket = (SocketInfo, Arc<dyn AsFd + Send + Sync>);

/// The text of another process, without control characters.
pub(crate) fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// The variable that names the new process and the descriptor of its channel, as `PID:FD`.
pub(crate) const CHANNEL_VARIABLE: &str = "PEERNAME_UPGRADE";

//! What a program of the matrix is configured with.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::wire::transport::Transport;

/// What a proxy is configured with in one cell.
pub(crate) struct ProxySetup {
    /// What the proxy has to carry.
    pub(crate) transport: Transport,
    /// Where the proxy listens.
    pub(crate) listen: SocketAddr,
    /// Where the backend listens.
    pub(crate) backend: SocketAddr,
    /// An empty directory for configuration and logs.
    pub(crate) directory: PathBuf,
}

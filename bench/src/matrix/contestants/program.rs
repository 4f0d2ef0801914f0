//! A program that can be measured as a proxy.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::wire::transport::Transport;

/// A program that listens at the proxy's address: how it is found, configured and started.
pub(crate) trait ProxyProgram {
    /// The name in the tables.
    fn name(&self) -> &str;

    /// The path of its binary.
    fn path(&self) -> &Path;

    /// The argument that makes it print its version.
    fn version_flag(&self) -> &str;

    /// Whether it knows the PROXY protocol over `transport`.
    fn carries(&self, transport: Transport) -> bool {
        transport == Transport::Tcp
    }

    /// The reason why it is skipped although its binary exists. None if it can take part.
    fn skip_reason(&self) -> Option<String> {
        None
    }

    /// The command that runs it in the foreground; writes its configuration file if it has one.
    fn command(&self, setup: &ProxySetup) -> Result<Command>;
}

/// What a proxy is configured with in one cell.
pub(crate) struct ProxySetup {
    /// What it has to carry.
    pub(crate) transport: Transport,
    /// Where the proxy listens.
    pub(crate) listen: SocketAddr,
    /// Where the backend listens.
    pub(crate) backend: SocketAddr,
    /// An empty directory for configuration and logs.
    pub(crate) directory: PathBuf,
}

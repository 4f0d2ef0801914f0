//! One client connection: the client, its exchanges in flight, and its connections to origins.

use std::sync::Arc;

use super::stall_monitor::StallMonitor;
use crate::request::client_info::ClientInfo;
use crate::upstream::ClientLeases;

/// A connection of a client, shared by the requests on it.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    pub(crate) info: Arc<ClientInfo>,
    /// Exchanges in flight.
    pub(crate) exchanges: StallMonitor,
    /// Connections to origins that this client uses.
    pub(crate) leases: Arc<ClientLeases>,
}

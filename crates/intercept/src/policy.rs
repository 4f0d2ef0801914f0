//! What the operator allows: clients, hosts with TLS that is not terminated, destinations.

pub mod access;
pub mod destination;
mod hash_queue;
pub(crate) mod host_port_path;
pub mod host_timeouts;
pub mod passthrough;
pub mod pinned;

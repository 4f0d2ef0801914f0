//! What the operator allows: clients, hosts whose TLS is not terminated, destinations.

pub mod access;
pub mod destination;
pub mod passthrough;
pub mod pinned;

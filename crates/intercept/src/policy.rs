//! Policies of the operator: for clients, destinations, hosts whose TLS is not terminated, and timeouts of single hosts.

pub mod access;
pub mod destination;
mod hash_queue;
pub mod host_pattern;
pub mod host_timeouts;
pub mod passthrough;
pub mod pinned;
pub mod tunnelled;

//! Access control: sets of networks, the clients that may connect, and how many connections each may have.

pub(crate) mod address_counts;
pub mod client_limit;
pub mod client_semaphore;
pub mod clients;
pub mod max_connections;
pub mod network_set;

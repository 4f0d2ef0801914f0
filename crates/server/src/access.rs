//! Access control: the syntax of lists of networks, the peers that may send headers, the clients that may connect, and how many
//! connections each may have.

pub mod client_limit;
pub mod clients;
pub mod network_list;
pub mod trust_list;

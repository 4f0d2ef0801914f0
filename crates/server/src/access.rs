//! Access control: the syntax of lists of networks, the peers that may send headers, and the clients that may connect.

pub mod clients;
pub mod network_list;
pub mod trust_list;

//! Who may connect: the syntax of lists of networks, and the peers that may send headers.

pub mod network_list;
pub mod trust_list;

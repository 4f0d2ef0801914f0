//! TCP sockets: listening, connected, and how bytes move between them.

pub mod foreign_listener;
pub mod listener;
pub mod original_destination;
pub mod socket_info;
pub mod splice;
pub mod stream;

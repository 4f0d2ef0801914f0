//! TCP sockets: listening, connected, and moving bytes between them.

pub mod foreign_listener;
pub mod listener;
mod original_destination;
pub mod socket_info;
pub mod splice;
pub mod stream;

pub use original_destination::original_destination;

//! What TCP and UDP sockets have in common.

pub mod transparent;
pub mod upstream;

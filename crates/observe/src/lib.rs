//! What an operator sees of a running command: escaped peer data, the admin endpoint.
#![forbid(unsafe_code)]

pub mod admin;
pub mod connections;
pub mod encode;
pub mod escape;
pub mod shell;

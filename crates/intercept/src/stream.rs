//! A client's socket, and byte streams with a buffer on one side.

pub(crate) mod client_socket;
pub(crate) mod corked;
pub(crate) mod origin_socket;
pub(crate) mod prefixed;

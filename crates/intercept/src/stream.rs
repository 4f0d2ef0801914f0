//! Byte streams: the sockets of clients and origins, and wrappers that buffer one direction.

pub(crate) mod client_socket;
pub(crate) mod corked;
pub(crate) mod head_reader;
pub(crate) mod origin_socket;
pub(crate) mod prefixed;

//! Unmodified clients, senders of headers and servers, and the helpers that drive them.

pub(crate) mod browser;
pub(crate) mod collector;
pub(crate) mod sender;
pub(crate) mod server;
pub(crate) mod stranger;
pub(crate) mod terminal;

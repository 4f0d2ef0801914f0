//! Helpers: a network of its own for each test, programs in it, and both ends of a connection.

pub(crate) mod addr;
pub(crate) mod admin;
pub(crate) mod backend;
pub(crate) mod browser;
pub(crate) mod check;
#[cfg(feature = "opentelemetry")]
pub(crate) mod collector;
pub(crate) mod conn;
pub(crate) mod datagram;
pub(crate) mod header_bytes;
pub(crate) mod lab;
pub(crate) mod nat_rules;
pub(crate) mod pattern;
pub(crate) mod peername;
pub(crate) mod rig;
pub(crate) mod sender;
pub(crate) mod server;
pub(crate) mod special_sources;
pub(crate) mod stranger;
pub(crate) mod strict_http;
pub(crate) mod terminal;

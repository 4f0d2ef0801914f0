//! Helpers: a network of its own for each test, programs in it, and both ends of a connection.

pub(crate) mod addr;
pub(crate) mod admin;
pub(crate) mod backend;
pub(crate) mod check;
pub(crate) mod conn;
pub(crate) mod datagram;
pub(crate) mod header_bytes;
pub(crate) mod lab;
pub(crate) mod nat_rules;
pub(crate) mod page;
pub(crate) mod pattern;
pub(crate) mod peername;
pub(crate) mod programs;
pub(crate) mod rig;
pub(crate) mod special_sources;
pub(crate) mod strict_http;

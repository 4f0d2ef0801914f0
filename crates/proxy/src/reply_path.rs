//! The reply path: the route by which a backend's replies to a spoofed client address come back to this host.
//!
//! [`probe`] tests a reply path once. [`monitor`] tests all of them periodically while a proxy runs, and keeps the last results
//! for new connections.

pub mod monitor;
pub mod probe;

mod recent;
mod reply_mark;
mod state;
mod target;
mod translated_client;

pub use target::ProbeTarget;

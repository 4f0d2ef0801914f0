//! The reply path: do a backend's replies to a client's address come back to this host?
//!
//! [`probe`] tests it once, [`monitor`] keeps testing while a proxy runs and answers for each connection.

pub mod monitor;
pub mod probe;

mod recent;
mod state;
mod target;

pub use target::ProbeTarget;

//! The reply path: the way back to this host of a backend's replies to a spoofed client address.
//!
//! [`probe`] tests it once. [`monitor`] tests it periodically while a proxy runs, and knows the last result for each
//! connection.

pub mod monitor;
pub mod probe;

mod recent;
mod state;
mod target;

pub use target::ProbeTarget;

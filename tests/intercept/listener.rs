//! Listeners: kinds, access, fairness.

mod access;
mod fairness;
pub(crate) mod kinds;

//! Listeners: explicit, transparent, with PROXY headers; access rules; fairness among clients.

mod access;
mod fairness;
pub(crate) mod kinds;

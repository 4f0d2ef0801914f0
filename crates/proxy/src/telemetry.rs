//! What is counted and logged of connections and sessions.

pub mod counters;

pub(crate) mod outages;
pub(crate) mod record;
pub(crate) mod refusals;

//! Metrics counters, log lines and throttled warnings about connections and sessions.

pub mod codes;
pub mod counters;
pub mod metrics;

pub(crate) mod outages;
pub(crate) mod record;
pub(crate) mod refusals;
mod totals;

pub use refusals::last_refusals;
pub use totals::log_totals;

//! Metrics counters, log lines and throttled warnings about connections and sessions.

pub mod codes;
pub mod counters;
pub mod metrics;

mod labels;
pub(crate) mod outages;
pub(crate) mod record;
pub(crate) mod refusals;

pub use counters::log_totals;
pub use refusals::last_refusals;

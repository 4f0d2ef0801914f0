//! The check: decisions, protocols, faults.

pub(crate) mod decisions;
mod faults;
mod protocols;
mod request_as_sent;

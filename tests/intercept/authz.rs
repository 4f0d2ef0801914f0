//! Authorization: the check's decisions, its protocols, its faults.

pub(crate) mod decisions;
mod faults;
mod protocols;
mod request_as_sent;
mod trace_context;

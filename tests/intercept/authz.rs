//! Authorization: the check's decisions, its protocols, its faults.

mod decisions;
mod faults;
mod inject;
mod lists;
mod protocols;
mod rego;
mod request_as_sent;
mod trace_context;
mod transports;

//! Values that the stages hand on: a connection's client and target, and a request's body, id, trace context and refusal.

pub(crate) mod buffered_body;
pub(crate) mod client_info;
pub(crate) mod id;
pub(crate) mod kind;
pub(crate) mod received_body;
pub(crate) mod refusal;
pub(crate) mod remedy;
pub(crate) mod target;
pub(crate) mod trace_context;
pub(crate) mod via;

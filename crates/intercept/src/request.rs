//! What the stages hand on about a connection and its requests: plain data.

pub(crate) mod buffered_body;
pub(crate) mod client_info;
pub(crate) mod id;
pub(crate) mod kind;
pub(crate) mod refusal;
pub(crate) mod remedy;
pub(crate) mod target;
pub(crate) mod trace_context;

//! HTTP: framing, downgrade, streams.

mod downgrade;
mod request_framing;
mod response_framing;
pub(crate) mod streams;
mod truncation;

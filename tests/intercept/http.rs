//! HTTP: framing, truncation, downgrade from HTTP/2, streams.

mod downgrade;
mod field_count;
mod request_framing;
mod response_framing;
pub(crate) mod streams;
mod truncation;

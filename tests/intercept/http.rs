//! HTTP: framing, truncation, downgrade from HTTP/2, streams.

mod downgrade;
mod expectation;
mod field_count;
mod heads;
mod refused_heads;
mod request_framing;
mod response_framing;
mod streams;
mod truncation;

//! A forward proxy that terminates TLS with certificates of its own authority, and forwards a request only if the configured
//! access lists, approver and check service allow it.
//!
//! ```text
//! ca ─▶ listener ─▶ http ─▶ authz ─▶ upstream
//!                           audit ◀────┘
//! ```
//!
//! The names that a client sends before its first request are combined into one value, in `request::target`; each
//! request is compared with it. A request is [`authz::Prepared`], then [`authz::Allowed`], then [`upstream::Sent`]:
//! [`upstream`] takes nothing that was not authorized.
#![forbid(unsafe_code)]

pub mod admin;
pub mod authz;
pub mod ca;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod host;
pub mod listener;
pub mod policy;
pub mod state;
pub mod upstream;

mod audit;
mod http;
mod http_client;
mod request;
mod stream;

pub use audit::{TARGET as AUDIT_TARGET, admission, denials, failures, otlp};
pub use request::remedy::Remedy;

/// Headers with these names and values, for unit tests.
#[cfg(test)]
fn header_map(pairs: &[(&'static str, &'static str)]) -> ::http::HeaderMap {
    let mut headers = ::http::HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, ::http::HeaderValue::from_static(value));
    }
    headers
}

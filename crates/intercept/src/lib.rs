//! A forward proxy that opens TLS with certificates of its own authority and lets a request through only
//! when an outside service agrees.
//!
//! ```text
//! door ─▶ Tunnel ─▶ Opening ─▶ Named ─▶ Exchange: prepared ─▶ asked ─▶ sent ─▶ Answer ─▶ Record
//! ```
//!
//! What a client says before a request is read into one value (`named`); what each request says is compared
//! with it. What the check has not agreed to has no way to [`upstream`].
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
mod request;
mod share;
mod stream;
mod tls;

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

pub mod access;
pub mod admin;
pub mod authority;
pub mod check;
pub mod destination;
pub mod door;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod host;
pub mod leaf;
pub mod metrics;
pub mod passthrough;
pub mod pinned;
pub mod site;
pub mod upstream;

mod answer;
mod asking;
mod audit;
mod body;
mod client;
mod cork;
mod exchange;
mod exchanges;
mod explicit;
mod framing;
mod headers;
mod held;
mod hello;
mod id;
mod inner;
mod named;
mod origin;
mod refusal;
mod share;
mod tunnel;
mod websocket;
mod wire;

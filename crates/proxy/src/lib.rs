//! The stages of a connection that begins with a PROXY protocol header.
//!
//! ```text
//! server ─▶ Accepted ─▶ Framed ─▶ Permit ─▶ Connected ─▶ Outcome
//!            trust       header    policy    upstream     relay
//! ```
//!
//! Each stage is a type that only the stage before can make, so that leaving one out does not
//! compile: only an [`Accepted`](accept::Accepted) is read from, only a [`Permit`](permit::Permit)
//! opens an upstream socket. [`tcp`] hands a connection from stage to stage; each of its ends is one
//! [`Outcome`](outcome::Outcome), which log line, counter and test all read. [`forward`] is the other
//! side, which writes the header. [`server`] runs the loops of both.
#![forbid(unsafe_code)]

pub mod accept;
pub mod addr;
pub mod capabilities;
pub mod config;
pub mod connect;
pub mod counters;
pub mod destination;
pub mod forward;
pub mod frame;
pub mod listeners;
pub mod outcome;
pub mod own_addresses;
pub mod permit;
pub mod reply_path;
pub mod routes;
pub mod server;
pub mod service;
pub mod source;
pub mod tcp;
pub mod throttle;
pub mod trust;
pub mod udp;
pub mod watchdog;

mod acceptor;
mod log;
mod outages;
mod pending;
mod preface;
mod refusals;
mod seat;
mod slots;

//! The stages of a connection that begins with a PROXY protocol header, and of a datagram.
//!
//! ```text
//! Incoming ─▶ AcceptedConn ─▶ ClaimedConn ─▶ Permit ─▶ ConnectedPair ─▶ Outcome
//!               trust           header        policy     upstream        relay
//! ```
//!
//! Each stage is a type that only the stage before can make, so that leaving one out does not compile: only an
//! [`AcceptedConn`](conn::accept::AcceptedConn) is read from, only a [`ConfirmedPermit`](policy::permit::ConfirmedPermit)
//! connects it to a backend. [`conn`] hands a connection from stage to stage, [`udp`] does so with datagrams and sessions;
//! each end is one [`Outcome`](outcome::Outcome), which log line, counter and test all read. [`forward`] is the sending
//! side, which writes the header.
#![forbid(unsafe_code)]

pub mod backend;
pub mod config;
pub mod conn;
pub mod connect;
pub mod forward;
pub mod nat_probe;
pub mod outcome;
pub mod policy;
pub mod reply_path;
pub mod routes;
pub mod service;
pub mod telemetry;
pub mod udp;

mod upstream_stream;

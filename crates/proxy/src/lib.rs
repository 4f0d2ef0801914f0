//! The stages of a connection that begins with a PROXY protocol header, and of a datagram.
//!
//! ```text
//! Incoming ─▶ AcceptedConn ─▶ ClaimedConn ─▶ Permit ─▶ ConnectedPair ─▶ Outcome
//!               trust           header        policy     upstream        relay
//! ```
//!
//! Each stage is a type that only the stage before can make, so that leaving one out does not compile: a header is read only
//! from an [`AcceptedConn`](conn::accept::AcceptedConn), and a backend is connected to only with a
//! [`ConfirmedPermit`](policy::permit::ConfirmedPermit). [`conn`] hands a connection from stage to stage, [`udp`] does so with
//! datagrams and sessions. Each ends with one [`Outcome`](outcome::Outcome), which the log line, the counters and the tests
//! all read. [`forward`] is the sending side, which writes the header.
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

//! `peername exec --mode preload`: unmodified programs see the client by themselves, address and port.
//!
//! What counts is what the program itself reports. Most tests use the server of `exec/server.c`, which
//! waits for connections in every way there is; `programs.rs` and `daemons.rs` have those that people run.

mod churn;
mod daemons;
mod faults;
mod headers;
mod libproxyproto;
mod library;
mod programs;
pub(crate) mod rig;
mod sources;
mod waiting;

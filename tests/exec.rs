//! `peername exec --mode preload`: unmodified programs see the client by themselves, address and port.
//!
//! What counts is what the program itself reports. Most tests use the server of `exec/server.c`, which
//! waits for connections in every way there is; `exec_programs.rs` has those that people run.

mod attendant;
mod churn;
mod crowd;
mod daemons;
mod environment;
mod faults;
mod headers;
mod libproxyproto;
mod library;
mod masters;
mod programs;
mod refusals;
pub(crate) mod rig;
mod sources;
mod troubles;
mod waiting;

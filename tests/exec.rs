//! `peername exec --mode preload`: unmodified programs see the client by themselves, address and port.
//!
//! What counts is what the program itself reports. Most tests use the server of `exec/server.c`, which
//! waits for connections in every way there is; `exec/programs.rs` has those that people run.

mod accept_calls;
mod connect;
mod coverage;
mod faults;
mod header_waiter;
mod headers;
mod libproxyproto;
mod library;
mod load;
mod netns;
mod notify;
mod programs;
mod refusals;
mod senders;
mod sources;

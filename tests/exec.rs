//! `peername exec`: unmodified servers get the client's address and port from their own system calls. Tests that do not name a
//! mode use `--mode preload`.
//!
//! The evidence is what the program itself reports. Most tests use the server of `harness/rig/exec/server.c`, which
//! accepts by every system call there is; `exec/programs.rs` has well-known programs.

mod accept;
mod admin;
mod agent;
mod clients;
mod connect;
mod coverage;
mod faults;
mod header_waiter;
mod headers;
mod library;
mod load;
mod netns;
mod notify;
mod programs;
mod refusals;
mod sandbox;
mod unit;

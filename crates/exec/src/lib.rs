//! `peername exec`: the server itself sees the client, and no proxy is in the path.
//!
//! The header is read where the connection is accepted, and accept(2) and getpeername(2) return the client. Afterwards
//! the server's connection is its own: no byte of it passes through peername.
//!
//! | module | |
//! |---|---|
//! | [`table`] | the shared identity table as a file ([`peername_identity`]) |
//! | [`client_judge`] | decides which clients may connect |
//! | [`interfaces`] | tries the interfaces of the kernel that the supervisor needs later |
//! | [`program`] | inspects a program, and selects the mechanism that reaches it |
//! | [`notify`] | the supervisor that answers system calls |
//! | [`library`] | finds the libraries that are loaded into programs, and sets their variables |
//! | [`connect`] | `--connect`: starts a client whose connections begin with a PROXY header |
//! | [`mod@unit`] | reads service units, and writes the drop-in that starts their server through `peername exec` |
//! | [`netns`] | `--mode netns`: a private network, and `peername proxy` in it |
//! | `header_waiter` | takes a connection's header and stores the client; keeps connections with an incomplete header for accept(2) |
//! | [`agent`] | supervises containers that a container runtime has started |
//! | [`admin`] | the process that serves the admin endpoint, beside the program or the agent |
#![forbid(unsafe_code)]

pub mod admin;
pub mod agent;
pub mod client_judge;
pub mod connect;
mod header_waiter;
pub mod interfaces;
pub mod library;
pub mod netns;
pub mod notify;
pub mod program;
mod sockets;
pub mod stderr_line;
pub mod table;
pub mod unit;

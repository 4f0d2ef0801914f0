//! `peername exec`: the server itself sees the client, and no proxy is in the path.
//!
//! The header is read where the connection is accepted, and what accept(2) and getpeername(2) answer
//! is the client. Afterwards nothing stands between the server and its connection.
//!
//! | module | |
//! |---|---|
//! | [`table`] | the shared table of identities as a file ([`peername_identity`]) |
//! | [`header_peek`] | peeks at a connection's header, strips it and stores the client, or refuses the connection |
//! | [`program`] | what will run, and which mechanism reaches it |
//! | [`notify`] | the supervisor that answers system calls |
//! | [`library`] | finds the libraries that are loaded into programs |
//! | [`preload`] | `--mode preload`: what a program needs to be started with the library |
//! | [`connect`] | `--connect`: a client whose connections begin with a header |
//! | [`netns`] | `--mode netns`: a private network, and `peername proxy` in it |
//! | [`header_waiter`] | keeps connections whose header is incomplete, so that accept never waits for one |
#![forbid(unsafe_code)]

pub mod connect;
pub mod header_peek;
pub mod header_waiter;
pub mod launch;
pub mod library;
pub mod netns;
pub mod notify;
pub mod preload;
pub mod program;
pub mod table;

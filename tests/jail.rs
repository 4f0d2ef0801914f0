//! `peername jail`: unmodified programs reach origins by the interceptor, and nothing otherwise.
//!
//! ```text
//!   balancer                            server
//!   jail [program] ── interceptor ───── nginx with TLS, certified by a root of the test's own
//! ```

mod ask;
mod audit;
mod bypasses;
mod denials;
mod failures;
mod files;
mod host_sockets;
mod learn;
mod lists;
mod mistakes;
mod ports;
mod process;
mod requests;
mod tcp;
mod tools;
mod trust;
mod unix_sockets;

//! `peername intercept`: unmodified clients reach unmodified origins through it, and nothing passes that the
//! check has not agreed to.
//!
//! ```text
//!   client ─────────── balancer ─────────── server
//!   curl               peername intercept   nginx with TLS, certified by a root of the test's own
//! ```

mod admin;
mod audit;
mod authz;
mod basics;
mod clients;
mod doctor;
mod http;
mod lifecycle;
mod listener;
mod reload;
mod stalls;
mod tls;
mod upstream;

//! `peername intercept`: unmodified clients reach unmodified origins through it, and it sends no request that
//! the check has not allowed.
//!
//! ```text
//!   client ─────────── balancer ─────────── server
//!   curl               peername intercept   nginx with TLS, certified by a root of the test's own
//! ```

mod admin;
mod audit;
mod authz;
mod clients;
mod configuration;
mod descriptors;
mod doctor;
mod forwarding;
mod http;
mod listener;
mod log_file;
mod opentelemetry;
mod stalls;
mod tls;
mod upgrade;
mod upstream;

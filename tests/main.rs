//! Black-box tests: the real binary between real balancers and real, unmodified servers.
//!
//! Every test builds a network of its own ([`harness::lab`]), so the tests need root and run side by side.
//! One folder holds one subject, one file one capability. The evidence is what a server reports about its
//! client (its access log, its session list). The few cases that need exact bytes or an ill-behaved peer use
//! [`harness::backend`] and [`harness::conn`]: the two ends of a connection, scripted by the test.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test whose output can't be written may end"
)]

mod address_policy;
mod cli;
mod exec;
mod harness;
mod intercept;
mod jail;
mod proxy;
mod udp;

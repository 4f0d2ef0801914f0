//! Black-box tests: the real binary between real balancers and real, unmodified servers.
//!
//! Every test builds a network of its own ([`lab`]), so the tests need root and run side by side.
//! One file shows one capability. What a server says about its client (its access log, its session
//! list) is the evidence; the few cases that need exact bytes or an ill-mannered peer use
//! [`backend`] and [`conn`], the two ends of a connection in our own hands.
#![forbid(unsafe_code)]

mod cli;
mod exec;
mod harness;
mod intercept;
mod proxy;
mod udp;

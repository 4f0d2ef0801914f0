//! `peername intercept`: unmodified clients reach unmodified origins through it, and nothing passes that the
//! check has not agreed to.
//!
//! ```text
//!   client ─────────── balancer ─────────── server
//!   curl               peername intercept   nginx with TLS, certified by a root of the test's own
//! ```

mod access;
mod admin;
mod answers;
mod asked;
mod basics;
mod certificates;
mod checked;
mod checks;
mod clients;
mod denied;
mod destinations;
mod downgrade;
mod ends;
mod entry;
mod faults;
mod flights;
mod framing;
mod idle;
mod life;
mod lines;
mod lockout;
mod lookups;
mod origins;
mod parent;
mod private;
mod rebinding;
mod reload;
mod rig;
mod sharing;
mod streams;
mod strict;

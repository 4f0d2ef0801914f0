//! `peername intercept`: unmodified clients reach unmodified origins through it, and nothing passes that the
//! check has not agreed to.
//!
//! ```text
//!   client ─────────── balancer ─────────── server
//!   curl               peername intercept   nginx with TLS, certified by a root of the test's own
//! ```

mod answers;
mod basics;
mod certificates;
mod checked;
mod checks;
mod clients;
mod denied;
mod destinations;
mod entry;
mod faults;
mod framing;
mod idle;
mod life;
mod parent;
mod rig;
mod sharing;
mod streams;
mod strict;

//! `peername intercept`: unmodified clients reach unmodified origins through it, and nothing passes that the
//! check has not agreed to.
//!
//! ```text
//!   client ─────────── balancer ─────────── server
//!   curl               peername intercept   nginx with TLS, certified by a root of the test's own
//! ```

mod basics;
mod denied;
mod destinations;
mod entry;
mod framing;
mod rig;
mod streams;

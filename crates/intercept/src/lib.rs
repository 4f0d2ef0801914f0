//! A forward proxy that opens TLS with certificates of its own authority and lets a request through only
//! when an outside service agrees.
#![forbid(unsafe_code)]

pub mod authority;
pub mod check;
pub mod host;
pub mod leaf;

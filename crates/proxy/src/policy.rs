//! Which claimed sources and destinations are allowed, whatever carried the header.

pub mod destination;
pub mod permit;
pub mod source;

//! Decides which claimed sources and destinations are allowed, for connections and datagrams alike.
//!
//! [`rules`] holds what a service decides by, [`source`] and [`destination`] are the policies for the addresses in a
//! header, and a [`permit`] is the positive result.

pub mod destination;
pub mod permit;
pub mod rules;
pub mod source;

pub(crate) mod claims;

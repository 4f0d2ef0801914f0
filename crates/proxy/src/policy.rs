//! Decides which claimed sources and destinations are allowed, for connections and datagrams alike.
//!
//! [`rules`] are all rules of a service. [`SourcePolicy`](peername_proto::SourcePolicy) and [`destination`] are the policies
//! for the addresses in a header. A [`permit`] is the positive result.

pub mod destination;
pub mod permit;
pub mod rules;

pub(crate) mod claims;

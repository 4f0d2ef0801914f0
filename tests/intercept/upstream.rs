//! Connections to origins: destinations, certificates, reuse, refusals.

mod certificates;
mod client_leases;
mod destinations;
mod name_resolution;
mod parent_proxy;
mod rebinding;
mod refusals;
mod retries;
pub(crate) mod reuse;

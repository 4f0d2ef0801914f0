//! Policy: trusted peers, claimed sources, allowed destinations.

mod destinations;
pub(crate) mod sources;
mod trust;

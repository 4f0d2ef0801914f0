//! Trust, claimed sources and destinations.

mod destinations;
pub(crate) mod sources;
mod trust;

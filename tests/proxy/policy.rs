//! Policy: trusted peers, claimed sources, allowed destinations.

mod destinations;
mod sources;
mod trust;

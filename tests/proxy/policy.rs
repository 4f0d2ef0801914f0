//! Policy: trusted peers, claimed sources, allowed destinations.

mod clients;
mod destinations;
mod sources;
mod targets;
mod trust;

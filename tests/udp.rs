//! UDP through the proxy: three dialects, and sessions that tell the truth.

mod delivery;
mod destinations;
mod dialects;
mod dns;
mod failover;
mod first;
mod flood;
mod forward;
mod iperf;
mod kernel;
mod quic;
pub(crate) mod rig;
mod routes;
mod sessions;
mod sources;
mod workers;

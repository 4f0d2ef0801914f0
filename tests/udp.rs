//! UDP through the proxy: three dialects, and sessions that tell the truth.

mod delivery;
mod destinations;
mod dialects;
mod failover;
mod first_header;
mod flood;
mod forward;
mod offload;
mod routes;
mod sessions;
mod sources;
mod workers;

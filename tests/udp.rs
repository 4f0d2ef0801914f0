//! UDP through `peername proxy` and `forward`: dialects, sessions, eviction, offload to the kernel.

mod clients;
mod delivery;
mod destinations;
mod dialects;
mod failover;
mod first_header;
mod flood;
mod forward;
mod nat;
mod offload;
mod routes;
mod sessions;
mod sources;
mod upgrade;
mod workers;

//! Connections from the proxy to its backends.

mod another_host;
mod collisions;
mod first_bytes;
mod nat;
mod outages;
mod outbound;
mod same_host;

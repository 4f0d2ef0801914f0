//! TLS towards clients and origins: handshakes, minted leaves.

mod handshake;
mod leaves;

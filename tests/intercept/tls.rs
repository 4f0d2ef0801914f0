//! TLS towards clients and origins.

mod handshake;
mod leaves;

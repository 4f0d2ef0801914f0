//! PROXY protocol codec.

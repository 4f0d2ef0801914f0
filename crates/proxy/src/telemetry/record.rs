//! The record of a connection or session, counted and logged once, at its end.

pub(crate) mod connection;
pub(crate) mod line;
pub(crate) mod session;

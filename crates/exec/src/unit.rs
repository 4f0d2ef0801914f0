//! Units of systemd whose server is to start through `peername exec`: reads a unit's files, and writes its drop-in.

pub mod drop_in;
mod sandbox;
pub mod service_unit;
mod unit_name;

#[cfg(test)]
mod tests;

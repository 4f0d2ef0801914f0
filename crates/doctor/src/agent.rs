//! Why containers don't see their clients: runtimes, the agent's socket, and a container that accepts a connection.

pub mod accept_one;
mod bounded_command;
mod bundle;
pub mod container;
pub mod kernel;
pub mod runtimes;
pub mod security_modules;
pub mod socket;

//! Processes, this one and others: privileges, limits, namespaces, memory and lifetime.

pub mod caps;
pub mod confine;
pub mod executable;
pub mod fork;
pub mod kill_on_close;
pub mod launch;
pub mod limits;
pub mod memory;
pub mod namespace;
pub mod pidfd;
pub mod secrets;
pub mod stderr;
pub mod terminal;
pub mod user;

//! The protocol of an upgrade, and the new process's side of it: sockets, sessions and state that it takes over.

pub(crate) mod channel;
pub(crate) mod message;
mod predecessor;
mod previous_state;

pub use message::{SharedSocket, SocketInfo};
pub use predecessor::{Predecessor, report_failure};
pub use previous_state::PreviousState;

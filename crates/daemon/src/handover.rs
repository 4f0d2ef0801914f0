//! The protocol of an upgrade, and the new process's side of it: sockets, sessions and state that it takes over.

pub(crate) mod channel;
pub(crate) mod message;
mod predecessor;
mod process_state;

pub use message::{SharedSocket, SocketInfo};
pub use predecessor::{Predecessor, report_failure};
pub use process_state::ProcessState;

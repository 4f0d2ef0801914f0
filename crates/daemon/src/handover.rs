//! The protocol of an upgrade, and the new process's side of it: sockets, sessions and state that it takes over.

pub(crate) mod channel;
mod inherited;
pub(crate) mod message;
mod predecessor;
pub(crate) mod udp;

pub use inherited::Inherited;
pub use message::{SharedSocket, SocketInfo};
pub use predecessor::{Predecessor, report_failure};

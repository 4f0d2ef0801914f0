//! UDP: datagrams with a PROXY header, and their sessions.
//!
//! ```text
//! worker               dialect        proxy, forwarder     session               worker
//! receive batch ─────▶ read header ─▶ trust, Permit ─────▶ look up or open, ───▶ send batch ─▶ backend
//!                                                          evict at a limit
//! balancer ◀─ send batch ◀─ check header ◀─ receive batch ◀─ backend
//! ```
//!
//! A session is one client behind one balancer at one listener: plain data in a bounded LRU table, and one socket that is
//! connected to the backend from the client's address. A `worker` moves batches of datagrams. A
//! `Role`, the proxy's or the forwarder's, decides what they mean. Steady sessions are carried by
//! the kernel (`session::offload`).

mod config;
mod dialect;
pub(crate) mod drop_reason;
pub(crate) mod endpoints;
mod forwarder;
mod handover;
mod known_services;
mod listeners;
mod listing;
mod lru_table;
mod proxy;
mod reply_sockets;
mod session;
mod worker;

pub use config::UdpConfig;
pub use dialect::{Dialect, UnknownDialect};
pub use forwarder::UdpForwarder;
pub use handover::{FrozenWorkers, ReceivedState, StateSink, UdpWorkers, WorkerState};
pub use listeners::{RestoreError, UdpListeners};
pub use listing::OpenSessions;
pub use proxy::UdpProxy;
pub use reply_sockets::MAX_REPLY_SOCKETS;

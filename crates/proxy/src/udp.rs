//! Datagrams that begin with a header, and the sessions they make.
//!
//! ```text
//!             framed         permit, upstream          worker
//! datagram ─▶ Framed ──────▶ Permit ─▶ socket ──────▶ Session ─▶ Outcome
//!             dialect        the same rules as TCP     table
//! ```
//!
//! A session is one client behind one balancer at one listener: plain data in a `table`, and one
//! socket that is connected to the backend from the client's address. The `worker` moves datagrams by
//! the batch; what they mean is decided by a `role`, the proxy's or the forwarder's.

mod config;
mod dialect;
mod drop_reason;
mod endpoints;
mod forwarder;
mod listeners;
mod lru_table;
mod offload;
mod proxy;
mod reply_sockets;
mod session;
mod worker;

pub use config::UdpConfig;
pub use dialect::{Dialect, UnknownDialect};
pub(crate) use drop_reason::DropReason;
pub use forwarder::UdpForwarder;
pub use listeners::UdpListeners;
pub use proxy::UdpProxy;
pub use reply_sockets::MAX_REPLY_SOCKETS;

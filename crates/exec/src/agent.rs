//! `peername agent`: supervises containers that are started without peername.
//!
//! ```text
//!  container runtime ──Unix socket──▶ agent ──fork──▶ supervisor of one container, in its network namespace
//!    state, seccomp listener            │
//!                                       └──────────▶ descriptor store: the service manager, or a holder process
//! ```
//!
//! A runtime starts a container with a seccomp profile that names the agent's socket (`listenerPath`), and sends the agent the
//! listener of the filter (OCI runtime specification 1.1, config-linux.md, "Seccomp"). From then on the supervisor answers
//! accept(2) and getpeername(2) of every process of the container, as in `peername exec --mode notify` ([`crate::notify`]).
//!
//! Each container has a supervisor of its own: the scheduler shares the processors among them, and a fault in one ends no
//! other. The state of a supervisor is in descriptors ([`descriptor_store`]): the listener, the calls that it has not answered,
//! the table of clients. So supervisor and agent may be killed, and the next ones continue.

pub mod admin;
mod container;
mod container_state;
mod container_supervisor;
pub mod descriptor_store;
pub mod holder;
mod registration;
mod runtime_refusal_log;
mod server;

pub use container_state::{DEFAULT_POLICY, is_policy_name};
pub use container_supervisor::AgentPolicy;
pub use server::{Agent, AgentError, AgentExit, AgentHost, PreparedAgent};

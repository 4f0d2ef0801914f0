//! The checks of `peername doctor`: whether this host can do what peername's commands need.
//!
//! Each check is one function that returns a [`Finding`](finding::Finding) with a remedy for the problem it has found. A check
//! tries the operation itself where it can (it connects, it binds a port) and reads settings only where it can't. The command
//! chooses the checks, and prints their findings.

pub mod agent;
pub mod backend;
pub mod backend_listener;
pub mod confinement;
pub mod finding;
pub mod host;
pub mod listener;
pub mod nat;
pub mod observe;
pub mod tproxy;
pub mod udp;
mod version;

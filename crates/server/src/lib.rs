//! The base of every listening command: listeners, workers, and the header of an accepted connection.
//!
//! ```text
//! listeners ─▶ workers ─▶ acceptor ─▶ balance ─▶ Serve (proxy, forward, intercept)
//!                          connection_limit         header_reader
//! ```
//!
//! [`workers::start`] runs one single-threaded event loop per worker on sockets that [`listeners`] opened. Each
//! accepted connection goes to an implementation of [`Serve`](workers::Serve). [`header_reader`] reads its PROXY
//! header.
#![forbid(unsafe_code)]

pub mod access;
pub mod addr;
pub mod capabilities;
pub mod confinement;
pub mod destination_list;
pub mod header_error;
pub mod header_limits;
pub mod header_reader;
pub mod hop_count;
pub mod listeners;
pub mod own_addresses;
pub mod pending_headers;
pub mod threads;
pub mod workers;

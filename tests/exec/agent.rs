//! `peername agent`: containers that know nothing of peername, started by a container runtime, see their clients.
//!
//! [`super::programs`] has well-known programs in such containers.

mod churn;
mod containers;
mod doctor;
mod faults;
mod hostile;
mod policies;
mod wakeups;

//! Many connections at once.

pub(crate) mod churn;
mod silent_clients;

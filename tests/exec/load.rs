//! Load: many connections through a small table, and beside silent clients.

pub(crate) mod churn;
mod silent_clients;

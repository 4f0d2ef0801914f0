//! Stages.
#![forbid(unsafe_code)]

pub mod own_addresses;
pub mod reply_path;
pub mod routes;

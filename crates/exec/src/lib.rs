//! Runs a server so that it sees its true client, without a proxy in between.
#![forbid(unsafe_code)]

pub mod program;

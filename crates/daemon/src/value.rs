//! The values of options: their syntax on the command line and in the configuration file.

mod endpoints;
mod parse;
pub mod text;

pub use endpoints::{Address, Listen, Target, target_v4, target_v6};
pub use parse::{
    MAX_INTEGER, Tlv, address, duration, has_failed_lookup, has_resolved_names, list_file, mark,
    missing_part, number, ports, timeout, tlv_kind,
};

//! The values of options: their syntax on the command line and in the configuration file.

mod endpoints;
mod parse;
pub mod text;

pub use endpoints::{Address, Listen, Target, target_v4, target_v6};
pub use parse::{
    MAX_INTEGER, Tlv, address, are_names_resolved, duration, is_name_unresolved, list_file, mark,
    number, ports, timeout, tlv_kind,
};

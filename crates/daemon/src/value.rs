//! The values of options: their syntax on the command line and in the configuration file.

mod endpoints;
mod parse;
pub mod text;

pub use endpoints::{Address, AllowDestination, Listen, Target, TargetV4, TargetV6};
pub use parse::{
    MAX_INTEGER, Tlv, address, address_v4, address_v6, are_names_resolved, duration,
    is_name_unresolved, list_file, mark, number, ports, timeout, tlv_kind,
};

//! The options that several commands share.

pub(crate) mod backend_args;
pub(crate) mod clients;
pub(crate) mod header_args;
pub(crate) mod protocol;
pub(crate) mod sent_header;
pub(crate) mod source_policy;
pub(crate) mod target_args;
pub(crate) mod udp;

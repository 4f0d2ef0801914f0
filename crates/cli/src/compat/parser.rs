//! The parsers of the other programs' command lines, each by the rules of the library that the program uses. (udppp's
//! is the crate `getopts`, which `udppp.rs` uses.) All of them return [`ParsedOptions`].

pub(super) mod argwerk;
#[cfg(test)]
mod expected;
pub(super) mod getopt_long;
pub(super) mod go_flag;
mod parsed_options;

pub(super) use parsed_options::ParsedOptions;

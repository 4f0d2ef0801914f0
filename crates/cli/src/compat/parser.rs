//! The parsers of the other programs' command lines, each by the rules of the library that the program uses. All of
//! them return [`ParsedOptions`].

pub(super) mod argwerk;
#[cfg(test)]
mod expected;
pub(super) mod getopt_long;
pub(super) mod getopts;
pub(super) mod go_flag;
mod parsed_options;
mod short_options;

pub(super) use parsed_options::ParsedOptions;

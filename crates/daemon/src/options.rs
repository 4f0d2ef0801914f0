//! Options of a command line or of a table of the configuration file. clap alone parses both: a table becomes words of a
//! command line ([`Tables`]), so values, defaults and contradictions are declared once. Help texts list the options in the
//! order of the code, each below its [`heading`].

mod clap_error;
mod file_path;
mod given;
pub mod heading;
mod known_keys;
mod origin;
pub mod schema;
mod table;

pub use given::{Given, Merged, not_with_file};
pub use known_keys::{KnownTable, key_of, server_option};
pub use origin::{Origin, TableKey};
pub use table::{Table, Tables};

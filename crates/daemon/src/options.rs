//! Options, by a command line or by a table of the configuration file. clap alone judges both: a table becomes words of a
//! command line ([`Tables`]), so values, defaults and contradictions are declared once.

mod clap_error;
mod given;
mod known_keys;
mod place;
pub mod schema;
mod table;

pub use given::{Given, NotWithFile};
pub use known_keys::Place;
pub use place::Origin;
pub use table::{Table, Tables};

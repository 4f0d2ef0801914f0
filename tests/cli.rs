//! Command line, configuration file, documentation, other programs' options.

mod ca;
mod compat;
mod config;
mod docs;
mod options;
mod service_manager;
mod subcommands;

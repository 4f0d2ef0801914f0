//! The command line: subcommands and options, configuration file, certificate authority, service manager, predecessors'
//! options, documentation.

mod ca;
mod checks;
mod compat;
mod config;
mod docs;
mod failed_start;
mod journal;
mod kernels;
mod mistakes;
mod options;
mod routing;
mod service_manager;
mod services;
mod start_order;
mod subcommands;

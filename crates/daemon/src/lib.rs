//! What every long-running command of peername is: one ordered start, listeners, reload, upgrade, drain, log and admin
//! endpoint.
#![forbid(unsafe_code)]

pub mod admin;
pub mod command;
pub mod descriptors;
pub mod handover;
pub mod listeners;
pub mod logging;
pub mod options;
pub mod process;
pub mod reload;
pub mod service_manager;
pub mod signals;
pub mod upgrade;
pub mod usage;
pub mod value;

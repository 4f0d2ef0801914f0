//! `peername`: gives a server behind a load balancer its true client back.
#![forbid(unsafe_code)]

mod cmd;

use std::process::ExitCode;

use clap::Parser;

use crate::cmd::Command;

/// Gives a server behind a load balancer its true client back.
#[derive(Debug, Parser)]
#[command(name = "peername", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    match Args::parse().command.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("peername: {error:#}");
            ExitCode::FAILURE
        }
    }
}

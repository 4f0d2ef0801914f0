//! Measures peername beside its peers: the same work, in one run, taking turns.
//!
//! Several programs in one binary, because each must be its own process for its CPU time not to be
//! counted as the proxy's: `backend` echoes, `load` generates and verifies, `naive-udp` is a relay to
//! compare with, `matrix` runs every contestant through every workload and prints the tables. `intercept` does
//! the same for proxies that open TLS.
//! Generator and backend share the machine with the proxy, so both are as plain as can be.
//!
//! Nothing leaves the machine: `matrix` works in network namespaces that hold only a loopback
//! device, as `intercept` does, and the generators refuse other targets.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod backend;
mod cell;
mod datagram;
mod intercept;
mod load;
mod matrix;
mod naive_udp;
mod namespace;
mod neighbours;
mod pattern;
mod poller;
mod procfs;
mod proxies;
mod report;
mod rounds;
mod running;
mod sockets;
mod stand;

#[derive(Parser)]
#[command(
    name = "peername-bench",
    version,
    about = "Measures PROXY protocol relays side by side"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Echo every byte that comes in, by TCP and UDP
    Backend(backend::Args),
    /// Put one workload on one address and print the figures as a JSON line
    Load(load::Args),
    /// Relay UDP in the plainest way there is, for comparison
    NaiveUdp(naive_udp::Args),
    /// Run all contestants through all workloads, print the tables, write the raw figures
    Matrix(matrix::Args),
    /// Measure `peername intercept` beside its peers, print the tables, write the raw figures
    Intercept(intercept::Args),
    /// Be what is behind an intercepting proxy
    InterceptOrigin(intercept::origin::Args),
    /// Put one load on an intercepting proxy and print the figures as a JSON line
    InterceptLoad(intercept::load::Args),
    /// Do the least that a proxy can do that opens TLS, for comparison
    #[command(hide = true)]
    InterceptFloor(intercept::floor::Args),
    /// One measurement, inside a namespace that `intercept` made
    #[command(hide = true)]
    InterceptCell(crate::cell::Args),
    /// One measurement, inside a namespace that `matrix` made
    #[command(hide = true)]
    Cell(cell::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Backend(args) => backend::run(&args),
        Command::Load(args) => load::print(&args),
        Command::NaiveUdp(args) => naive_udp::run(&args),
        Command::Matrix(args) => matrix::run(&args),
        Command::Cell(args) => cell::print(&args),
        Command::Intercept(args) => intercept::run(&args),
        Command::InterceptOrigin(args) => intercept::origin::run(&args),
        Command::InterceptLoad(args) => intercept::load::print(args),
        Command::InterceptFloor(args) => intercept::floor::run(&args),
        Command::InterceptCell(args) => intercept::cell::print(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peername-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

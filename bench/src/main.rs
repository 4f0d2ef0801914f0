//! Benchmarks: peername side by side with other proxies, the same work in interleaved rounds.
//!
//! One binary with several roles, each run as a process of its own, so that its CPU time is not counted as the
//! proxy's: `backend` echoes, `load` generates and verifies, `naive-udp` is a relay to compare with, `matrix` runs
//! every contestant through every workload and prints the tables. `intercept` does the same for proxies that
//! open TLS, and `jail` for programs that confine another to such a proxy. Generator and backend share the machine with
//! the proxy, so both are kept simple.
//!
//! | module | content |
//! |---|---|
//! | [`matrix`], [`intercept`], [`jail`] | what is compared: contestants, cases, targets, and one cell's set-up |
//! | [`compare`] | interleaved rounds, sandboxes, raw results, report |
//! | [`load`], [`backend`], [`naive_udp`] | traffic: generator, echo server, baseline relay |
//! | [`wire`] | the bytes that are sent, so that each one can be verified |
//! | [`host`] | namespaces, processes, sockets, CPU time and memory |
//!
//! No traffic leaves the machine: `matrix`, `intercept` and `jail` work in network namespaces that hold only a
//! loopback device at first, and the generators refuse other targets.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark whose output can't be written may end"
)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod backend;
mod compare;
mod host;
mod intercept;
mod jail;
mod load;
mod matrix;
mod naive_udp;
mod wire;

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
    /// Echo every byte received, over TCP and UDP
    Backend(backend::Args),
    /// Apply one workload to one address and print the metrics as a JSON line
    Load(load::Args),
    /// Relay UDP in the simplest possible way, as a baseline
    NaiveUdp(naive_udp::Args),
    /// Run all contestants through all workloads, print the tables, write the raw results
    Matrix(matrix::Args),
    /// Measure `peername intercept` and its competitors, print the tables, write the raw results
    Intercept(intercept::Args),
    /// Run the origin server behind an intercepting proxy
    InterceptOrigin(intercept::origin::Args),
    /// Apply one workload to an intercepting proxy and print the metrics as a JSON line
    InterceptLoad(intercept::load::Args),
    /// Run the minimum that any TLS-opening proxy has to do, as a baseline
    #[command(hide = true)]
    InterceptFloor(intercept::floor::Args),
    /// Measure one cell, inside a namespace that `intercept` made
    #[command(hide = true)]
    InterceptCell(compare::sandbox::CellArgs),
    /// Measure `peername jail` and httpjail, print the tables, write the raw results (root)
    Jail(jail::Args),
    /// Apply loads to an origin, inside a jail
    #[command(hide = true)]
    JailClient,
    /// Measure one cell, inside a namespace that `jail` made
    #[command(hide = true)]
    JailCell(compare::sandbox::CellArgs),
    /// Measure one cell, inside a namespace that `matrix` made
    #[command(hide = true)]
    Cell(compare::sandbox::CellArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Backend(args) => backend::run(&args),
        Command::Load(args) => load::print(&args),
        Command::NaiveUdp(args) => naive_udp::run(&args),
        Command::Matrix(args) => matrix::run(&args),
        Command::Cell(args) => matrix::cell::run(&args),
        Command::Intercept(args) => intercept::run(&args),
        Command::InterceptOrigin(args) => intercept::origin::run(&args),
        Command::InterceptLoad(args) => intercept::load::print(args),
        Command::InterceptFloor(args) => intercept::floor::run(&args),
        Command::InterceptCell(args) => intercept::cell::run(&args),
        Command::Jail(args) => jail::run(&args),
        Command::JailClient => jail::client::run(),
        Command::JailCell(args) => jail::cell::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peername-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

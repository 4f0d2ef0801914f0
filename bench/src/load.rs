//! The generator: applies one workload to one address, and verifies every byte.
//!
//! It has one thread, so that its share of the machine, which the proxy runs on too, is small and constant. A workload
//! ends by itself: no new request begins after the deadline, outstanding ones get [`GRACE`](meter::GRACE), and what is
//! missing then counts as lost.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};

use crate::compare::measurement::Metric;
use crate::host::procfs::ProcessTree;
use crate::load::balancer::SocketLayout;
use crate::load::spec::{LoadSpec, Preface, Workload};

pub(crate) mod balancer;
mod bulk;
mod churn;
pub(crate) mod connection;
mod idle;
pub(crate) mod meter;
mod pingpong;
pub(crate) mod spec;
mod udp_echo;
mod udp_stream;

/// The arguments of `peername-bench load`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to do
    workload: Workload,
    /// Where to connect to; must be in 127.0.0.0/8
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    target: SocketAddr,
    /// The backend's own address, which UDP workloads query for what arrived; defaults to the target
    #[arg(long, value_name = "ADDR")]
    backend: Option<SocketAddr>,
    /// What comes first on a connection, or in each datagram
    #[arg(long, default_value = "none")]
    preface: Preface,
    /// Concurrent connections; clients, with UDP
    #[arg(long, value_name = "N", default_value_t = 50)]
    connections: usize,
    /// How long
    #[arg(long = "for", value_name = "DURATION", default_value = "3s")]
    duration: humantime::Duration,
    /// Also report what this process and its descendants use
    #[arg(long, value_name = "PID")]
    watch: Option<u32>,
}

/// Runs one workload and prints its metrics.
pub(crate) fn print(args: &Args) -> Result<()> {
    let spec = LoadSpec {
        target: args.target,
        backend: args.backend.unwrap_or(args.target),
        preface: args.preface,
        connections: args.connections,
        duration: *args.duration,
        turn: 0,
        watch: args.watch.map(ProcessTree::of),
    };
    println!("{}", serde_json::to_string(&run(args.workload, &spec)?)?);
    Ok(())
}

/// Runs one workload and returns its metrics in the order in which they are printed.
///
/// # Errors
/// A byte came back wrong or not at all, a connection failed, a datagram was wrong or went to another client, or the
/// target is not loopback. Lost datagrams are a metric, not an error.
pub(crate) fn run(workload: Workload, spec: &LoadSpec) -> Result<Vec<Metric>> {
    for address in [spec.target, spec.backend] {
        ensure!(
            matches!(address.ip(), IpAddr::V4(ip) if ip.is_loopback()),
            "{address} is outside of 127.0.0.0/8: load stays on this machine"
        );
    }
    ensure!(spec.connections > 0, "no connections, no load");
    match workload {
        Workload::Pingpong => pingpong::run(spec),
        Workload::Bulk => bulk::run(spec),
        Workload::Churn => churn::run(spec),
        Workload::Idle => idle::run(spec),
        Workload::UdpEcho => udp_echo::run(spec, SocketLayout::PerClient, 1),
        Workload::UdpEchoShared => udp_echo::run(spec, SocketLayout::Shared, 1),
        Workload::UdpEchoWindow => udp_echo::run(spec, SocketLayout::PerClient, WINDOW),
        Workload::UdpStream => udp_stream::run(spec),
    }
}

/// In-flight datagrams of each client in [`Workload::UdpEchoWindow`]: a few, as of a game or a resolver under load.
const WINDOW: usize = 8;

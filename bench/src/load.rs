//! The generator: one workload on one address, every byte verified.
//!
//! It is one thread, so that it disturbs the proxy it shares the machine with as little, and
//! always as much. A workload ends by itself: nothing new is begun once the time is over, what is
//! outstanding gets [`GRACE`], and what is missing then counts as lost.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::procfs::{Cpu, ProcessTree};

pub(crate) use balancer::seen;
#[cfg(test)]
pub(crate) use balancer::v2_header;
pub(crate) use connection::{Connection, claimed_source};

use balancer::Sockets;

mod balancer;
mod bulk;
mod churn;
mod connection;
mod idle;
mod pingpong;
mod udp_echo;
mod udp_stream;

/// `peername-bench load`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to do
    workload: Workload,
    /// Where to connect to; must be in 127.0.0.0/8
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    target: SocketAddr,
    /// Where the backend itself is, to be asked what arrived by UDP; the target if not given
    #[arg(long, value_name = "ADDR")]
    backend: Option<SocketAddr>,
    /// What comes first on a connection, or in each datagram
    #[arg(long, default_value = "none")]
    preface: Preface,
    /// Connections at a time; clients, with UDP
    #[arg(long, value_name = "N", default_value_t = 50)]
    connections: usize,
    /// How long
    #[arg(long = "for", value_name = "DURATION", default_value = "3s")]
    duration: humantime::Duration,
    /// Also report what this process and its descendants use
    #[arg(long, value_name = "PID")]
    watch: Option<u32>,
}

/// Shapes of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// 64 B there, 64 B back, over and over on the same connections
    Pingpong,
    /// As many bytes as will go, both ways at once
    Bulk,
    /// Connect, send, receive, close
    Churn,
    /// Many connections that have nothing to say
    Idle,
    /// As pingpong, in datagrams; one lost is given up after a while
    UdpEcho,
    /// As udp-echo, with all clients behind one socket
    UdpEchoShared,
    /// As udp-echo, with 8 datagrams of each client under way
    UdpEchoWindow,
    /// As many datagrams of 1,200 B as will go, one way
    UdpStream,
}

/// What a workload runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

impl Workload {
    pub(crate) fn transport(self) -> Transport {
        match self {
            Self::Pingpong | Self::Bulk | Self::Churn | Self::Idle => Transport::Tcp,
            Self::UdpEcho | Self::UdpEchoShared | Self::UdpEchoWindow | Self::UdpStream => {
                Transport::Udp
            }
        }
    }
}

/// What precedes the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Preface {
    /// Nothing
    None,
    /// The PROXY protocol, with another client on each connection: a version 1 line at its start, or a
    /// version 2 header in each datagram
    Proxy,
}

/// What a workload needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) target: SocketAddr,
    /// Where the backend is, past the proxy. Only UDP needs it, and only to ask what arrived.
    pub(crate) backend: SocketAddr,
    pub(crate) preface: Preface,
    pub(crate) connections: usize,
    pub(crate) duration: Duration,
    /// How many such runs there were already: whoever makes connections anew has other clients in each.
    pub(crate) turn: u32,
    /// The proxy, if there is one.
    pub(crate) watch: Option<ProcessTree>,
}

/// One measured figure. The name carries the unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) value: f64,
}

impl Metric {
    pub(crate) fn new(name: &str, value: f64) -> Self {
        Self {
            name: name.to_owned(),
            value,
        }
    }
}

/// Runs one workload and prints its figures.
///
/// # Errors
/// As [`run`].
pub(crate) fn print(args: &Args) -> Result<()> {
    let plan = Plan {
        target: args.target,
        backend: args.backend.unwrap_or(args.target),
        preface: args.preface,
        connections: args.connections,
        duration: *args.duration,
        turn: 0,
        watch: args.watch.map(ProcessTree::of),
    };
    println!("{}", serde_json::to_string(&run(args.workload, &plan)?)?);
    Ok(())
}

/// Runs one workload and returns its figures in the order in which they are to be read.
///
/// # Errors
/// A byte came back wrong or not at all, a connection failed, a datagram was wrong or went to another
/// client, or the target is not loopback. Lost datagrams are a figure.
pub(crate) fn run(workload: Workload, plan: &Plan) -> Result<Vec<Metric>> {
    for address in [plan.target, plan.backend] {
        ensure!(
            matches!(address.ip(), IpAddr::V4(ip) if ip.is_loopback()),
            "{address} is outside of 127.0.0.0/8: load stays on this machine"
        );
    }
    ensure!(plan.connections > 0, "no connections, no load");
    match workload {
        Workload::Pingpong => pingpong::run(plan),
        Workload::Bulk => bulk::run(plan),
        Workload::Churn => churn::run(plan),
        Workload::Idle => idle::run(plan),
        Workload::UdpEcho => udp_echo::run(plan, Sockets::Each, 1),
        Workload::UdpEchoShared => udp_echo::run(plan, Sockets::Shared, 1),
        Workload::UdpEchoWindow => udp_echo::run(plan, Sockets::Each, WINDOW),
        Workload::UdpStream => udp_stream::run(plan),
    }
}

/// Time and CPU time from the beginning of the measured stretch.
///
/// The stretch ends with the last byte back, not with the clock: so work and cost cover exactly
/// the same bytes.
struct Meter {
    start: Instant,
    watch: Option<(ProcessTree, Cpu)>,
    all: (ProcessTree, Cpu),
    deadline: Instant,
}

/// What a measured stretch took; `cpu` is the proxy's, `of_all` that of generator and backend too.
struct Usage {
    elapsed: Duration,
    cpu: Option<Duration>,
    of_all: Duration,
}

impl Meter {
    fn start(plan: &Plan) -> Result<Self> {
        let watch = plan
            .watch
            .map(|tree| Ok::<_, anyhow::Error>((tree, tree.cpu()?)));
        let watch = watch.transpose()?;
        let all = ProcessTree::of(std::process::id());
        let all = (all, all.cpu()?);
        let start = Instant::now();
        Ok(Self {
            start,
            watch,
            all,
            deadline: start + plan.duration,
        })
    }

    /// Whether new work may begin.
    fn is_running(&self, now: Instant) -> bool {
        now < self.deadline
    }

    /// Whether outstanding work must be given up.
    fn is_over(&self, now: Instant) -> bool {
        now >= self.deadline + GRACE
    }

    fn stop(self) -> Result<Usage> {
        let elapsed = self.start.elapsed();
        let cpu = self
            .watch
            .map(|(tree, before)| Ok::<_, anyhow::Error>(tree.cpu()?.since(before)));
        let (all, before) = self.all;
        Ok(Usage {
            elapsed,
            cpu: cpu.transpose()?,
            of_all: all.cpu()?.since(before),
        })
    }
}

impl Usage {
    /// `count` things a second.
    fn rate(&self, count: u64) -> f64 {
        count as f64 / self.elapsed.as_secs_f64()
    }

    /// The same of generator, proxy and backend together. What the kernel does for a proxy is done in the time of
    /// whoever sends.
    fn cpu_micros_of_all_per(&self, name: &str, count: u64) -> Metric {
        Metric::new(name, self.of_all.as_secs_f64() * 1e6 / count as f64)
    }

    /// Microseconds of CPU for each of `count` things, if there was a proxy to use them.
    fn cpu_micros_per(&self, name: &str, count: u64) -> Option<Metric> {
        Some(Metric::new(
            name,
            self.cpu?.as_secs_f64() * 1e6 / count as f64,
        ))
    }
}

/// An empty record of nanoseconds, to three digits.
///
/// # Errors
/// None: the bounds are good.
pub(crate) fn latencies() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(
        1,
        2 * GRACE.as_nanos() as u64,
        3,
    )?)
}

/// What is said about latency everywhere.
pub(crate) fn quantiles(latency: &Histogram<u64>) -> [Metric; 2] {
    let micros = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
    [
        Metric::new("p50 us", micros(0.5)),
        Metric::new("p99 us", micros(0.99)),
    ]
}

/// Fifty times what a retransmission takes on loopback: who needs longer has lost it.
const GRACE: Duration = Duration::from_secs(10);

/// How long a wait may last, so that deadlines are seen even if nothing happens.
const GLANCE: Duration = Duration::from_millis(100);

/// Datagrams of a client under way in [`Workload::UdpEchoWindow`]: as many as the load that UDP proxies for
/// this work have been measured with before.
const WINDOW: usize = 8;

//! `intercept-load`: the generator. Connections through a proxy to many names or one, each answer verified.
//!
//! One thread; each client is a task that takes the next piece of work until there is none. The first
//! answer that is wrong fails the run.

use std::cell::RefCell;
use std::collections::HashSet;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio::sync::Barrier;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;

use crate::load::{Metric, latencies, quantiles};
use crate::procfs::{self, Cpu, ProcessTree};

use client::{Client, Session};

mod client;

/// What is compared.
pub(crate) const CPU: &str = "CPU s/1000";
/// Different ones that clients were shown.
pub(crate) const CERTIFICATES: &str = "certificates";

/// The domain whose names the proxy must resolve to the origin.
pub(crate) const DOMAIN: &str = "bench.test";

/// How much of what.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, clap::Args)]
pub(crate) struct Shape {
    /// Requests in all
    #[arg(long, value_name = "N", default_value_t = Self::WARM.requests)]
    pub(crate) requests: usize,
    /// Names that they are for, in turns
    #[arg(long, value_name = "N", default_value_t = Self::WARM.hosts)]
    pub(crate) hosts: usize,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = Self::WARM.clients)]
    pub(crate) clients: usize,
    /// Requests on each connection
    #[arg(long, value_name = "N", default_value_t = Self::WARM.each)]
    pub(crate) each: usize,
    /// Requests at a time on each connection; with more than one it is HTTP/2
    #[arg(long, value_name = "N", default_value_t = Self::WARM.streams)]
    pub(crate) streams: usize,
    /// Take up TLS sessions again
    #[arg(long)]
    pub(crate) resume: bool,
    /// All clients connect, and then ask in the same instant
    #[arg(long)]
    pub(crate) at_once: bool,
}

impl Shape {
    /// A connection for each request, all to one host.
    pub(crate) const WARM: Self = Self {
        requests: 1000,
        hosts: 1,
        clients: 8,
        each: 1,
        streams: 1,
        resume: false,
        at_once: false,
    };

    /// The same with `requests` at most, so that something of everything is left.
    pub(crate) fn shrink(&mut self, requests: usize) {
        self.requests = self.requests.min(requests);
        self.clients = self.clients.min(requests);
        self.each = self.each.min(self.requests / self.clients);
    }
}

/// What the generator needs to know.
pub(crate) struct Plan {
    pub(crate) shape: Shape,
    /// None: straight to the origin.
    pub(crate) proxy: Option<SocketAddrV4>,
    pub(crate) origin: SocketAddrV4,
    /// Whose certificates clients believe.
    pub(crate) authority: PathBuf,
    /// The origin's own, to ask it for its count of handshakes.
    pub(crate) root: PathBuf,
    /// Whose CPU time is measured.
    pub(crate) watch: Option<ProcessTree>,
}

/// `peername-bench intercept-load`
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    shape: Shape,
    /// The proxy; straight to the origin if not given
    #[arg(long, value_name = "ADDR")]
    proxy: Option<SocketAddrV4>,
    /// The origin; the names that the proxy is asked for are below bench.test
    #[arg(long, value_name = "ADDR")]
    origin: SocketAddrV4,
    /// The authority whose certificates are believed, PEM
    #[arg(long, value_name = "FILE")]
    authority: PathBuf,
    /// The origin's authority, PEM
    #[arg(long, value_name = "FILE")]
    root: PathBuf,
    /// Also report what this process and its descendants use
    #[arg(long, value_name = "PID")]
    watch: Option<u32>,
}

/// Runs one load and prints its figures as a JSON line.
///
/// # Errors
/// As [`run`].
pub(crate) fn print(args: Args) -> Result<()> {
    let plan = Plan {
        shape: args.shape,
        proxy: args.proxy,
        origin: args.origin,
        authority: args.authority,
        root: args.root,
        watch: args.watch.map(ProcessTree::of),
    };
    println!("{}", serde_json::to_string(&run(&plan, || Ok(()))?)?);
    Ok(())
}

/// Warms up, calls `begin`, applies the load and returns its figures in the order in which they are to be
/// read.
///
/// # Errors
/// A connection, a handshake or an answer failed or was wrong, the origin can't be asked, or an address is
/// outside of 127.0.0.0/8 and 192.0.2.0/24, or those of `begin`.
pub(crate) fn run(plan: &Plan, begin: impl FnOnce() -> Result<()>) -> Result<Vec<Metric>> {
    for address in plan.proxy.iter().chain([&plan.origin]) {
        let ip = address.ip();
        ensure!(
            ip.is_loopback() || ip.octets().starts_with(&[192, 0, 2]),
            "{address} is outside of 127.0.0.0/8 and 192.0.2.0/24: load stays on this machine"
        );
    }
    let shape = plan.shape;
    ensure!(
        [
            shape.requests,
            shape.hosts,
            shape.clients,
            shape.each,
            shape.streams
        ]
        .iter()
        .all(|&number| number > 0),
        "nothing of something is no load: {shape:?}"
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, measure(plan, begin))
}

async fn measure(plan: &Plan, begin: impl FnOnce() -> Result<()>) -> Result<Vec<Metric>> {
    let client = Rc::new(Client::new(plan)?);
    let origin = Client::to_origin(plan)?;
    warm_up(&client).await?;
    let handshakes = origin.handshakes().await?;
    begin()?;
    let usage = Usage::begin(plan.watch)?;
    let work = Rc::new(Work::new(plan.shape)?);
    let mut clients = JoinSet::new();
    for _ in 0..plan.shape.clients {
        let (client, work) = (client.clone(), work.clone());
        clients.spawn_local(async move { work.share(&client).await });
    }
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    let used = usage.end()?;
    // Asking is a handshake too.
    let handshakes = origin.handshakes().await?.saturating_sub(handshakes + 1);
    Ok(work.figures(plan, used, handshakes))
}

/// What a program does at its first connections only is not what is measured.
async fn warm_up(client: &Client) -> Result<()> {
    for _ in 0..WARM_UP {
        let mut session = client.open("warm-up").await.context("warming up")?;
        session.ask().await.context("warming up")?;
    }
    Ok(())
}

/// What all clients share.
struct Work {
    shape: Shape,
    together: Barrier,
    record: RefCell<Record>,
}

struct Record {
    /// Connections that were begun.
    begun: usize,
    latency: Histogram<u64>,
    serials: HashSet<Vec<u8>>,
}

impl Work {
    fn new(shape: Shape) -> Result<Self> {
        Ok(Self {
            shape,
            together: Barrier::new(if shape.at_once { shape.clients } else { 1 }),
            record: RefCell::new(Record {
                begun: 0,
                latency: latencies()?,
                serials: HashSet::new(),
            }),
        })
    }

    /// One client's part: connections until all are begun.
    async fn share(&self, client: &Client) -> Result<()> {
        while let Some(number) = self.next() {
            let host = format!("host-{}", number % self.shape.hosts);
            timeout(PATIENCE, self.connection(client, number, &host))
                .await
                .with_context(|| format!("{host}: no answer within {PATIENCE:?}"))
                .flatten()
                .with_context(|| host.clone())?;
        }
        Ok(())
    }

    fn next(&self) -> Option<usize> {
        let mut record = self.record.borrow_mut();
        let number = record.begun;
        record.begun += 1;
        (number * self.shape.each < self.shape.requests).then_some(number)
    }

    async fn connection(&self, client: &Client, number: usize, host: &str) -> Result<()> {
        let mut start = Instant::now();
        let stream = client.connect(number).await?;
        if self.shape.at_once {
            self.together.wait().await;
            start = Instant::now();
        }
        let session = client.handshake(stream, host).await?;
        let serial = session.serial().to_vec();
        self.record.borrow_mut().serials.insert(serial);
        if self.shape.streams > 1 {
            return self.streams(session).await;
        }
        self.requests(session, self.shape.each, start).await
    }

    async fn streams(&self, session: Session) -> Result<()> {
        let each = self.shape.each.div_ceil(self.shape.streams);
        let streams = (0..self.shape.streams).map(|_| async {
            let stream = session.stream().context("not HTTP/2")?;
            self.requests(stream, each, Instant::now()).await
        });
        futures_util::future::try_join_all(streams).await?;
        Ok(())
    }

    /// The first one's time is taken from `start`, with the connection's making.
    async fn requests(&self, mut session: Session, count: usize, mut start: Instant) -> Result<()> {
        for _ in 0..count {
            session.ask().await?;
            let now = Instant::now();
            let nanos = now.duration_since(start).as_nanos() as u64;
            self.record.borrow_mut().latency.saturating_record(nanos);
            start = now;
        }
        Ok(())
    }

    fn figures(&self, plan: &Plan, used: Used, handshakes: u64) -> Vec<Metric> {
        let record = self.record.borrow();
        let done = record.latency.len() as f64;
        let mut metrics = Vec::new();
        if let Some(cpu) = used.cpu {
            let cpu = cpu.as_secs_f64();
            metrics.push(Metric::new(CPU, 1000.0 * cpu / done));
            metrics.push(Metric::new(
                "busy %",
                100.0 * cpu / used.elapsed.as_secs_f64(),
            ));
        }
        metrics.push(Metric::new("requests/s", done / used.elapsed.as_secs_f64()));
        metrics.extend(quantiles(&record.latency));
        metrics.push(Metric::new(CERTIFICATES, record.serials.len() as f64));
        metrics.push(Metric::new(
            "generator's s/1000",
            1000.0 * used.own.as_secs_f64() / done,
        ));
        if plan.proxy.is_some() {
            metrics.push(Metric::new("upstream handshakes", handshakes as f64));
        }
        metrics
    }
}

/// Time and CPU time from the beginning of the measured stretch.
struct Usage {
    start: Instant,
    own: Duration,
    watch: Option<(ProcessTree, Cpu)>,
}

struct Used {
    elapsed: Duration,
    /// The generator's.
    own: Duration,
    cpu: Option<Duration>,
}

impl Usage {
    fn begin(watch: Option<ProcessTree>) -> Result<Self> {
        let watch = watch.map(|tree| Ok::<_, anyhow::Error>((tree, tree.cpu()?)));
        Ok(Self {
            watch: watch.transpose()?,
            own: procfs::this_thread()?,
            start: Instant::now(),
        })
    }

    fn end(self) -> Result<Used> {
        let elapsed = self.start.elapsed();
        let cpu = self
            .watch
            .map(|(tree, before)| Ok::<_, anyhow::Error>(tree.cpu()?.since(before)));
        Ok(Used {
            elapsed,
            own: procfs::this_thread()?.saturating_sub(self.own),
            cpu: cpu.transpose()?,
        })
    }
}

/// Connections before the measured stretch.
const WARM_UP: usize = 8;

/// A connection that takes longer is lost. The slowest contestant needs a second for eight.
const PATIENCE: Duration = Duration::from_secs(30);

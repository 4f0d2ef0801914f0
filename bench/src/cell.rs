//! One measurement: one contestant, one workload, in a network of their own.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::load::{self, Connection, Metric, Plan, Preface, Transport, Workload, claimed_source};
use crate::namespace;
use crate::procfs::{self, Cpu, ProcessTree};
use crate::proxies::{Contestant, Site};
use crate::sockets;

/// `peername-bench cell`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A [`Cell`] as JSON
    cell: String,
}

/// What to measure.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) contestant: Contestant,
    pub(crate) workload: Workload,
    pub(crate) connections: usize,
    pub(crate) duration: Duration,
    /// Whose CPU time is counted.
    pub(crate) watch: Watch,
    /// An empty directory; what is in it afterwards explains a failure.
    pub(crate) directory: PathBuf,
}

/// Whose CPU time is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Watch {
    /// The proxy's.
    Proxy,
    /// Everybody's but the generator's: where proxy and backend are one process, that is how they compare
    /// with two.
    All,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) identity: Identity,
    /// Per cent of all processors that something else used meanwhile. See [`Neighbours`].
    pub(crate) others: f64,
    pub(crate) metrics: Vec<Metric>,
}

/// Whom the backend sees. Looked up in the kernel's table of connections, or, with UDP, asked of the
/// backend, rather than believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Identity {
    /// The client's address and port: as if there were no proxy.
    Exact,
    /// The client's address with another port.
    Address,
    /// The proxy.
    Proxy,
    /// Contestant and backend are one: the kernel's table shows whoever connects, and what accept(2)
    /// says is not to be seen from outside. The tests of `peername exec` ask the server.
    Inside,
}

/// Measures in this process's namespace and prints the outcome as a JSON line.
///
/// # Errors
/// The namespace is not one of ours, something did not start, or the workload failed.
pub(crate) fn print(args: &Args) -> Result<()> {
    let cell: Cell = serde_json::from_str(&args.cell).context("the description of the cell")?;
    namespace::furnish()?;
    let outcome = cell.measure()?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

impl Cell {
    fn measure(&self) -> Result<Outcome> {
        let transport = self.workload.transport();
        let site = Site {
            transport,
            listen: PROXY.into(),
            backend: BACKEND.into(),
            directory: self.directory.clone(),
        };
        let _backend = Running::start("backend", backend()?, &site, BACKEND)?;
        let proxy = match self.contestant.proxy() {
            None => None,
            Some(proxy) => {
                let command = proxy.command(&site)?;
                Some(Running::start(proxy.name(), command, &site, PROXY)?)
            }
        };
        let plan = Plan {
            target: if proxy.is_some() {
                site.listen
            } else {
                site.backend
            },
            backend: site.backend,
            preface: self.contestant.preface(),
            connections: self.connections,
            duration: self.duration,
            watch: match self.watch {
                Watch::Proxy => proxy.as_ref().map(|it| ProcessTree::of(it.child.id())),
                Watch::All => Some(ProcessTree::below_us()),
            },
        };
        let measured = self.load(&plan);
        match &proxy {
            Some(running) => measured.with_context(|| running.last_words()),
            None => measured,
        }
    }

    fn load(&self, plan: &Plan) -> Result<Outcome> {
        let identity = match self.workload.transport() {
            Transport::Tcp if self.contestant.is_backend() => {
                Connection::open(plan, 0)?;
                Identity::Inside
            }
            Transport::Tcp => identify(plan)?,
            Transport::Udp => identify_datagrams(plan)?,
        };
        let neighbours = Neighbours::watch()?;
        let metrics = load::run(self.workload, plan)?;
        Ok(Outcome {
            identity,
            others: neighbours.share()?,
            metrics,
        })
    }
}

/// What the rest of the machine does during a measurement: all CPU time less that of generator,
/// backend and proxy.
///
/// It changes more than rates: with a compiler beside it on two cores, HAProxy's CPU per echo was
/// 3.5 us, and 6.5 us without. Why is not settled; all three processes on one core cost less per echo
/// too, so fewer wake-ups across cores are likely to be a part.
struct Neighbours {
    start: Instant,
    busy: Duration,
    ours: Cpu,
}

impl Neighbours {
    fn watch() -> Result<Self> {
        Ok(Self {
            start: Instant::now(),
            busy: procfs::busy()?,
            ours: ours()?,
        })
    }

    fn share(self) -> Result<f64> {
        let ours = ours()?.since(self.ours);
        let others = procfs::busy()?
            .saturating_sub(self.busy)
            .saturating_sub(ours);
        let all = self.start.elapsed() * procfs::processors()?;
        Ok(100.0 * others.as_secs_f64() / all.as_secs_f64())
    }
}

/// Backend and proxy are children of this process.
fn ours() -> Result<Cpu> {
    ProcessTree::of(std::process::id()).cpu()
}

/// A server that is ended with its guard.
struct Running {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Returns once something listens at `at`. What the server prints goes to the site's directory.
    fn start(name: &str, mut command: Command, site: &Site, at: SocketAddrV4) -> Result<Self> {
        let log = site.directory.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        let mut running = Self {
            name: name.to_owned(),
            child,
            log,
        };
        let deadline = Instant::now() + START;
        while !sockets::table(site.transport)?
            .iter()
            .any(|entry| entry.is_listening && entry.local == at)
        {
            let ended = running.child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                bail!("{name} does not listen on {at}; {}", running.last_words());
            }
            sleep(GLANCE);
        }
        // The other workers' listeners follow the first.
        sleep(SETTLE);
        Ok(running)
    }

    /// The end of what it printed: usually why it failed.
    fn last_words(&self) -> String {
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let start = said.len().saturating_sub(LAST_WORDS);
        match said.get(said.ceil_char_boundary(start)..).map(str::trim) {
            None | Some("") => format!("{} said nothing", self.name),
            Some(end) => format!("{} said: {end}", self.name),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn backend() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("own path")?);
    command.args(["backend", "--listen", &BACKEND.to_string()]);
    Ok(command)
}

/// Opens connection number 0, which the workloads leave free, and looks who came.
fn identify(plan: &Plan) -> Result<Identity> {
    let connection = Connection::open(plan, 0)?;
    let claimed = match plan.preface {
        Preface::None => return Ok(Identity::Exact),
        Preface::Proxy => claimed_source(connection.serial()),
    };
    let table = sockets::table(Transport::Tcp)?;
    let peers = table
        .iter()
        .filter(|entry| entry.local == BACKEND)
        .map(|entry| entry.remote);
    Ok(Identity::of(claimed, peers))
}

/// Has client number 0 ask. A proxy need not have a socket for it that could be looked up.
fn identify_datagrams(plan: &Plan) -> Result<Identity> {
    let seen = load::seen(plan)?;
    Ok(match plan.preface {
        Preface::None => Identity::Exact,
        Preface::Proxy => Identity::of(claimed_source(0), std::iter::once(seen)),
    })
}

impl Identity {
    /// The best that can be said of a client that claims to be `claimed`, given whom the backend sees.
    fn of(claimed: SocketAddrV4, mut seen: impl Iterator<Item = SocketAddrV4> + Clone) -> Self {
        if seen.clone().any(|peer| peer == claimed) {
            Self::Exact
        } else if seen.any(|peer| peer.ip() == claimed.ip()) {
            Self::Address
        } else {
            Self::Proxy
        }
    }

    /// For the raw figures.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Exact => "client",
            Self::Address => "client-address",
            Self::Proxy => "proxy",
            Self::Inside => "not-seen",
        }
    }

    /// For the line below the table.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Exact => "the backend sees the client's address and port",
            Self::Address => "the backend sees the client's address, with another port",
            Self::Proxy => "the backend sees the proxy",
            Self::Inside => "it is the backend",
        }
    }
}

const PROXY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8443);
const BACKEND: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080);

/// Bytes of a log that are shown. Some servers complain once a connection.
const LAST_WORDS: usize = 1000;

/// A start that takes longer has failed.
const START: Duration = Duration::from_secs(5);

/// How often a start is looked at.
const GLANCE: Duration = Duration::from_millis(5);

/// From a server's first listener to its last, generously.
const SETTLE: Duration = Duration::from_millis(100);

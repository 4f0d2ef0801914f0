//! One measurement: one contestant, one workload, in a network of their own.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::load::{self, Connection, Metric, Plan, Preface, Transport, Workload, claimed_source};
use crate::namespace;
use crate::neighbours::{Disturbance, Neighbours};
use crate::procfs::ProcessTree;
use crate::proxies::{Contestant, Site};
use crate::running::Running;
use crate::{sockets, stand};

/// `peername-bench cell`, and `intercept-cell`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure, as JSON
    cell: String,
}

impl Args {
    /// # Errors
    /// It is not the JSON of what to measure.
    pub(crate) fn parse<C: DeserializeOwned>(&self) -> Result<C> {
        serde_json::from_str(&self.cell).context("the description of the cell")
    }
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
    /// None if nobody asked.
    pub(crate) identity: Option<Identity>,
    pub(crate) disturbance: Disturbance,
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

/// Sets everything up in this process's namespace, and measures whenever it is told to.
///
/// # Errors
/// The namespace is not one of ours, something did not start, or the workload failed.
pub(crate) fn print(args: &Args) -> Result<()> {
    let cell: Cell = args.parse()?;
    namespace::furnish()?;
    cell.run()
}

impl Cell {
    fn run(&self) -> Result<()> {
        let transport = self.workload.transport();
        let site = Site {
            transport,
            listen: PROXY.into(),
            backend: BACKEND.into(),
            directory: self.directory.clone(),
        };
        let _backend =
            Running::start("backend", backend()?, &self.directory, (transport, BACKEND))?;
        let proxy = match self.contestant.proxy() {
            None => None,
            Some(proxy) => {
                let command = proxy.command(&site)?;
                Some(Running::start(
                    proxy.name(),
                    command,
                    &self.directory,
                    (transport, PROXY),
                )?)
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
            turn: 0,
            watch: match self.watch {
                Watch::Proxy => proxy.as_ref().map(Running::tree),
                Watch::All => Some(ProcessTree::below_us()),
            },
        };
        let measured = self.take_turns(plan);
        match &proxy {
            Some(running) => measured.with_context(|| running.last_words()),
            None => measured,
        }
    }

    fn take_turns(&self, mut plan: Plan) -> Result<()> {
        let identity = match self.workload.transport() {
            Transport::Tcp if self.contestant.is_backend() => {
                Connection::open(&plan, 0)?;
                Identity::Inside
            }
            Transport::Tcp => identify(&plan)?,
            Transport::Udp => identify_datagrams(&plan)?,
        };
        stand::take_turns(|turn| {
            plan.turn = turn;
            let neighbours = Neighbours::watch()?;
            let metrics = load::run(self.workload, &plan)?;
            Ok(Outcome {
                identity: Some(identity),
                disturbance: neighbours.disturbance()?,
                metrics,
            })
        })
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
            Self::Exact => "; the backend sees the client's address and port",
            Self::Address => "; the backend sees the client's address, with another port",
            Self::Proxy => "; the backend sees the proxy",
            Self::Inside => "; it is the backend",
        }
    }
}

const PROXY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8443);
const BACKEND: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080);

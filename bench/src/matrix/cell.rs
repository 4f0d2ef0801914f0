//! One cell of the matrix: one contestant and one workload, in a network of their own.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::compare::contestant::Contestant;
use crate::compare::measurement::{Measurement, ObservedSource};
use crate::compare::sandbox::{CellArgs, serve_commands};
use crate::host::background_load::BackgroundMonitor;
use crate::host::namespace;
use crate::host::procfs::ProcessTree;
use crate::host::server_process::ServerProcess;
use crate::host::sockets;
use crate::load;
use crate::load::balancer::observed_source;
use crate::load::connection::{Connection, claimed_source};
use crate::load::spec::{LoadSpec, Preface, Workload};
use crate::matrix::contestants::setup::ProxySetup;
use crate::matrix::contestants::{ADMIN, MatrixContestant};
use crate::matrix::observer::Observer;
use crate::matrix::selection::CpuScope;
use crate::wire::transport::Transport;

/// What to measure.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MatrixCell {
    pub(super) contestant: MatrixContestant,
    pub(super) workload: Workload,
    pub(super) connections: usize,
    pub(super) duration: Duration,
    /// The processes to count the CPU time of.
    pub(super) cpu_scope: CpuScope,
    /// An empty directory; the logs in it explain a failure.
    pub(super) directory: PathBuf,
}

/// Sets the cell up in this process's namespace, and measures on command.
pub(crate) fn run(args: &CellArgs) -> Result<()> {
    let cell: MatrixCell = args.parse()?;
    namespace::configure()?;
    cell.run()
}

impl MatrixCell {
    fn run(&self) -> Result<()> {
        let transport = self.workload.transport();
        let setup = ProxySetup {
            transport,
            listen: PROXY.into(),
            backend: BACKEND.into(),
            directory: self.directory.clone(),
        };
        let command = backend_command()?;
        let _backend =
            ServerProcess::start("backend", command, &self.directory, (transport, BACKEND))?;
        let proxy = match self.contestant.command(&setup)? {
            Some(command) => Some(ServerProcess::start(
                self.contestant.name(),
                command,
                &self.directory,
                (transport, PROXY),
            )?),
            None => None,
        };
        let spec = LoadSpec {
            target: if proxy.is_some() {
                setup.listen
            } else {
                setup.backend
            },
            backend: setup.backend,
            preface: self.contestant.preface(),
            connections: self.connections,
            duration: self.duration,
            turn: 0,
            watch: match self.cpu_scope {
                CpuScope::Proxy => proxy.as_ref().map(ServerProcess::tree),
                CpuScope::AllButGenerator => Some(ProcessTree::descendants_of_self()),
            },
        };
        let _observer = match self.contestant {
            MatrixContestant::Observed(_) => Some(Observer::start(ADMIN.into())?),
            _ => None,
        };
        let measured = self.serve(spec);
        match &proxy {
            Some(proxy) => measured.with_context(|| proxy.log_tail()),
            None => measured,
        }
    }

    fn serve(&self, mut spec: LoadSpec) -> Result<()> {
        let observed = match self.workload.transport() {
            Transport::Tcp if self.contestant.is_backend() => {
                Connection::open(&spec, 0)?;
                ObservedSource::NotObservable
            }
            Transport::Tcp => observe_tcp(&spec)?,
            Transport::Udp => observe_udp(&spec)?,
        };
        serve_commands(|turn| {
            spec.turn = turn;
            let monitor = BackgroundMonitor::start()?;
            let metrics = load::run(self.workload, &spec)?;
            Ok(Measurement {
                observed: Some(observed),
                background: monitor.finish()?,
                metrics,
            })
        })
    }
}

fn backend_command() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("own path")?);
    command.args(["backend", "--listen", &BACKEND.to_string()]);
    Ok(command)
}

/// Opens connection number 0, which the workloads leave free, and looks up the source of the backend's connections
/// in the kernel's table.
fn observe_tcp(spec: &LoadSpec) -> Result<ObservedSource> {
    let connection = Connection::open(spec, 0)?;
    let claimed = match spec.preface {
        Preface::None => return Ok(ObservedSource::AddressAndPort),
        Preface::Proxy => claimed_source(connection.serial()),
    };
    let table = sockets::read_table(Transport::Tcp)?;
    let peers = table
        .iter()
        .filter(|entry| entry.local == BACKEND)
        .map(|entry| entry.remote);
    Ok(ObservedSource::classify(claimed, peers))
}

/// Has client number 0 query the backend through the proxy. A look-up in the kernel's table could miss: a proxy need not
/// have a socket for each client.
fn observe_udp(spec: &LoadSpec) -> Result<ObservedSource> {
    let seen = observed_source(spec)?;
    Ok(match spec.preface {
        Preface::None => ObservedSource::AddressAndPort,
        Preface::Proxy => ObservedSource::classify(claimed_source(0), std::iter::once(seen)),
    })
}

const PROXY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8443);
const BACKEND: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080);

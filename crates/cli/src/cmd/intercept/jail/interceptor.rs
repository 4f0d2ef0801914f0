//! The interceptor of a jail: a process of its own outside, with the jail's listening sockets.

use std::collections::BTreeSet;
use std::env;
use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use peername_daemon::command::block_on;
use peername_daemon::descriptors;
use peername_daemon::listeners::running::{Opened, UdpTasks};
use peername_daemon::options::Given;
use peername_daemon::process::Process;
use peername_daemon::process::default_workers;
use peername_daemon::usage::Usage;
use peername_intercept::authz::CheckService;
use peername_intercept::ca::Authority;
use peername_intercept::listener::jail::names::server::{serve_tcp, serve_udp};
use peername_intercept::listener::jail::names::table::{SyntheticNames, synthetic_networks};
use peername_intercept::listener::jail::{JailListener, TunnelledDestination};
use peername_intercept::listener::{CurrentState, Intercept};
use peername_intercept::otlp::SpanExporter;
use peername_jail::network::{DNS_PORT, is_jailed};
use peername_server::destination_list::AllowedDestination;
use peername_server::listeners::InheritedSockets;
use peername_server::own_addresses::OwnAddresses;
use peername_server::workers::Workers;
use peername_server::workers::services::ServiceHandle;
use peername_sys::ipc::fd_passing;
use peername_sys::ipc::listen_fds::InheritedSocket;
use peername_sys::process::caps::{CapabilitySet, keep_only};
use peername_sys::process::pidfd::PidFd;
use peername_sys::process::secrets;
use tokio::time::timeout;
use tracing::Level;

use super::admission_log::{AdmissionFile, warn_if_replaced};
use super::approval::{Mode, OutsideApprover};
use super::helper::Helper;
use super::options::Args;
use crate::cmd::intercept::options::Intercept as Options;
use crate::cmd::intercept::setup::{JailPlan, Setup};
use crate::cmd::intercept::{TASKS_PER_WORKER, new_state, split_capacity, usual_needs};

/// Everything that the interceptor is started with, but for the sockets.
pub(super) struct Interceptor {
    options: Options,
    process: Process,
    authority: Authority,
    tunnelled: Vec<TunnelledDestination>,
    opened: BTreeSet<u16>,
    log: Option<PathBuf>,
    level: Level,
    /// Until it is started.
    helper: Option<Helper>,
    mode: Option<Mode>,
    is_unchecked: bool,
    /// The working directory: options may name files relative to it.
    directory: Option<PathBuf>,
}

impl Interceptor {
    /// Reads and validates the options.
    ///
    /// # Errors
    ///
    /// [`Usage`].
    pub(super) fn new(args: &Args, authority: Authority) -> anyhow::Result<Self> {
        let mut process = Given::<Process>::default().options;
        process.sandbox = args.sandbox;
        process.logging = args.logging;
        process.set_default_workers(default_workers().min(MAX_WORKERS));
        let interceptor = Self {
            options: args.intercept.0.clone(),
            process,
            authority,
            tunnelled: args.tunnelled()?,
            opened: args.http_ports(),
            log: args.log.clone(),
            level: level(args),
            helper: None,
            mode: None,
            is_unchecked: false,
            directory: env::current_dir().ok(),
        };
        // Reports what is wrong with the options before anything is started.
        let setup = interceptor.setup(Vec::new(), false)?;
        let helper = Helper::new(args)?;
        Ok(Self {
            is_unchecked: setup.is_unchecked() && helper.is_none(),
            mode: helper.as_ref().map(Helper::mode),
            helper,
            ..interceptor
        })
    }

    fn setup(&self, addresses: Vec<SocketAddr>, has_v6: bool) -> Result<Setup, Usage> {
        let listener = JailListener {
            names: Arc::new(SyntheticNames::new(has_v6)),
            opened: self.opened.clone(),
            tunnelled: self.tunnelled.clone(),
        };
        let plan = JailPlan {
            addresses,
            listener: Arc::new(listener),
        };
        Setup::for_jail(self.process.clone(), self.options.clone(), plan)
    }

    /// The ports on which the jail listens: those that are opened, and those of `--allow-tcp`.
    pub(super) fn ports(&self) -> BTreeSet<u16> {
        let tunnelled = self.tunnelled.iter().map(TunnelledDestination::port);
        self.opened.iter().copied().chain(tunnelled).collect()
    }

    /// Starts the helper of `--ask` and `--learn`, whose channel it inherits last.
    ///
    /// # Errors
    ///
    /// fork(2) fails.
    pub(super) fn start_helper(&mut self) -> peername_sys::Result<Option<OwnedFd>> {
        self.helper.take().map(Helper::spawn).transpose()
    }

    /// Whether neither access lists nor a check are configured, and nothing is asked or learned.
    pub(super) fn is_unchecked(&self) -> bool {
        self.is_unchecked
    }

    /// Opens the file of `--log`, which it inherits beside the channel and the program.
    ///
    /// # Errors
    ///
    /// The file can't be created or written.
    pub(super) fn open_log(&self) -> anyhow::Result<Option<OwnedFd>> {
        let Some(path) = &self.log else {
            return Ok(None);
        };
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).mode(0o600).open(path);
        let file = file.with_context(|| format!("--log {}", path.display()))?;
        Ok(Some(file.into()))
    }

    /// Runs it in this process until the program has exited. `inherited` are the channel, the program, the file of
    /// [`Interceptor::open_log`], and the channel of [`Interceptor::start_helper`]. Returns the exit code.
    pub(super) fn run(self, inherited: Vec<OwnedFd>) -> u8 {
        match self.try_run(inherited) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("peername: the interceptor: {error:#}");
                1
            }
        }
    }

    fn try_run(self, inherited: Vec<OwnedFd>) -> anyhow::Result<()> {
        let mut inherited = inherited.into_iter();
        let (channel, program) = (inherited.next(), inherited.next());
        let (channel, program) = channel.zip(program).context("no channel")?;
        let program = PidFd::from(program);
        let log = self.log.as_ref().and_then(|_| inherited.next());
        let (log, helper) = (log.map(File::from), inherited.next());
        if let Some(directory) = &self.directory {
            let _ = env::set_current_dir(directory);
        }
        let Some(sockets) = receive_sockets(&channel)? else {
            return Ok(());
        };
        block_on(self.serve(sockets, (channel, program), log, helper))
    }

    async fn serve(
        self,
        sockets: Vec<OwnedFd>,
        (channel, program): (OwnedFd, PidFd),
        log: Option<File>,
        helper: Option<OwnedFd>,
    ) -> anyhow::Result<()> {
        secrets::disable_core_dumps()?;
        let sockets = JailSockets::sort(sockets)?;
        let setup = self.setup(sockets.addresses(), sockets.has_v6())?;
        let check = setup.check.clone().map(CheckService::new);
        let check = check.transpose().map_err(Usage::from_error)?;
        let own = OwnAddresses::read().await?;
        let workers = setup.process.workers();
        let given = InheritedSockets::new(sockets.listeners);
        let open = Opened::open(setup.listen_plans(false), workers, given, None)?;
        keep_only(CapabilitySet::empty())?;
        let mut destinations = setup.destinations(&own, &open.sockets.actual());
        if is_jailed() {
            // Names resolve to addresses of the outer jail, which has checks of its own.
            let outer = synthetic_networks().map(AllowedDestination::with_all_ports);
            destinations.allowed.extend(outer);
        }
        let (capacity, max_upstream) =
            split_capacity(descriptors::capacity(workers, TASKS_PER_WORKER, 0)?);
        let limits = (capacity.connections, max_upstream);
        let exporter = setup.start_exporter()?;
        let state = new_state(&setup, self.authority, destinations, check.clone(), limits)?;
        let confinement = setup.process.sandbox.confine(usual_needs(None))?;
        let written = log.as_ref().map(File::metadata).transpose()?;
        let admissions = log.as_ref().map(File::try_clone).transpose()?;
        let admissions = admissions.map(|file| Arc::new(AdmissionFile::new(file)) as _);
        let (_log, _level) = setup.process.logging.start_at(self.level, log);
        confinement.log();
        let approver = self.mode.zip(helper);
        let approver = approver.map(|(mode, channel)| OutsideApprover::new(mode, channel));
        let approver = approver.transpose()?.map(|one| Arc::new(one) as _);
        let spans = exporter.as_ref().map(SpanExporter::queue);
        let state = state.with_approver(approver).with_admission_log(admissions);
        let state = Arc::new(state.with_spans(spans));
        setup.warn_of_exposed_secrets();
        if let Some(check) = check {
            check.await_services();
        }
        let services = ServiceHandle::new(setup.services(&open.sockets.numbers(), &state));
        let intercept = Arc::new(Intercept::new(services, CurrentState::new(state)));
        let beside = intercept.worker_tasks(workers);
        let listeners = open.start(&intercept, capacity, beside, |_| UdpTasks::default())?;
        tokio::spawn(own.keep_watching());
        let names = setup.jail_names().context("no names")?;
        for socket in sockets.names_udp {
            serve_udp(socket, Arc::clone(&names)).context("the name server of the jail")?;
        }
        for socket in sockets.names_tcp {
            serve_tcp(socket, Arc::clone(&names)).context("the name server of the jail")?;
        }
        // Where this fails, the jail could not be made, and its process ends.
        let _ = fd_passing::send_word(&channel, READY, None);
        drop(channel);
        program.wait_exit().await?;
        end(listeners.workers).await;
        if let Some((path, written)) = self.log.as_ref().zip(written) {
            warn_if_replaced(path, &written);
        }
        if let Some(exporter) = exporter {
            exporter.stop().await;
        }
        Ok(())
    }
}

/// Drains the connections of the program, which has exited, and ends those that other processes of the jail keep open: each
/// writes its audit lines.
async fn end(mut workers: Workers) {
    workers.drain();
    let all_ended = async { while workers.next_exit().await.is_some() {} };
    let _ = timeout(DRAIN_LIMIT, all_ended).await;
    workers.end();
    workers.join();
}

/// The sockets of the jail, by their use.
struct JailSockets {
    listeners: Vec<InheritedSocket>,
    names_udp: Vec<OwnedFd>,
    names_tcp: Vec<OwnedFd>,
}

impl JailSockets {
    fn sort(sockets: Vec<OwnedFd>) -> anyhow::Result<Self> {
        let mut sorted = Self {
            listeners: Vec::new(),
            names_udp: Vec::new(),
            names_tcp: Vec::new(),
        };
        for socket in sockets {
            let socket = InheritedSocket::new(socket, "jail".to_owned())?;
            match (socket.addr.port(), socket.is_stream) {
                (DNS_PORT, true) => sorted.names_tcp.push(socket.try_clone()?),
                (DNS_PORT, false) => sorted.names_udp.push(socket.try_clone()?),
                _ => sorted.listeners.push(socket),
            }
        }
        Ok(sorted)
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|socket| socket.addr).collect()
    }

    fn has_v6(&self) -> bool {
        self.listeners.iter().any(|socket| socket.addr.is_ipv6())
    }
}

/// Sends the jail's sockets to the interceptor.
///
/// # Errors
///
/// EPIPE: the interceptor has exited.
pub(super) fn send_sockets(channel: &OwnedFd, sockets: &[OwnedFd]) -> peername_sys::Result<()> {
    for chunk in sockets.chunks(fd_passing::MAX_FDS) {
        let fds: Vec<_> = chunk.iter().map(AsFd::as_fd).collect();
        fd_passing::send_message(channel, MORE, &fds)?;
    }
    fd_passing::send_message(channel, LAST, &[])
}

/// Waits until the interceptor serves; `false` if it has exited instead.
///
/// # Errors
///
/// Those of recvmsg(2): none in normal operation.
pub(super) fn wait_ready(channel: &OwnedFd) -> peername_sys::Result<bool> {
    let word = fd_passing::receive_word(channel)?;
    Ok(word.is_some_and(|(word, _)| word == READY))
}

/// Receives the jail's sockets; `None` if the jail could not be made.
fn receive_sockets(channel: &OwnedFd) -> peername_sys::Result<Option<Vec<OwnedFd>>> {
    let mut sockets = Vec::new();
    loop {
        let mut bytes = [0; 1];
        let (length, fds) = fd_passing::receive_message(channel, &mut bytes)?;
        sockets.extend(fds);
        match bytes.get(..length) {
            Some(MORE) => {}
            Some(LAST) => return Ok(Some(sockets)),
            _ => return Ok(None),
        }
    }
}

/// Errors only, unless the audit lines are asked for.
fn level(args: &Args) -> Level {
    match args.logging.verbose {
        0 if args.log.is_none() => Level::ERROR,
        0 | 1 => Level::INFO,
        2 => Level::DEBUG,
        _ => Level::TRACE,
    }
}

const MORE: &[u8] = b"+";
const LAST: &[u8] = b".";
const READY: u64 = 1;
/// One program rarely needs more; each has a thread and a pool of connections.
const MAX_WORKERS: usize = 4;
/// For connections that another process of the jail keeps open.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

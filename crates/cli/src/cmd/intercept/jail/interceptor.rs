//! The interceptor of a jail: a process of its own outside, with the jail's listening sockets.

mod sockets;

use std::collections::BTreeSet;
use std::env;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use peername_daemon::command::block_on;
use peername_daemon::listeners::BoundAddresses;
use peername_daemon::listeners::running::{Opened, UdpTasks};
use peername_daemon::logging::LogFile;
use peername_daemon::options::Given;
use peername_daemon::process::Process;
use peername_daemon::process::default_workers;
use peername_daemon::usage::UsageError;
use peername_daemon::usage::error_text::with_causes;
use peername_intercept::AUDIT_TARGET;
use peername_intercept::authz::{AccessRules, Approver, CheckConfig, CheckService, ConfigError};
use peername_intercept::ca::Authority;
use peername_intercept::denials::Denials;
use peername_intercept::failures::Failures;
use peername_intercept::host::{HostPort, LOCALHOST};
use peername_intercept::listener::jail::JailListener;
use peername_intercept::listener::jail::names::range::NameRanges;
use peername_intercept::listener::jail::names::server::{serve_tcp, serve_udp};
use peername_intercept::listener::jail::names::table::SyntheticNames;
use peername_intercept::listener::{CurrentState, Intercept};
use peername_intercept::otlp::SpanExporter;
use peername_intercept::policy::destination::{Destinations, Requested};
use peername_intercept::policy::tunnelled::TunnelledDestination;
use peername_intercept::upstream::trust::check_extra_ca;
use peername_jail::network::{alternate_ports, is_jailed};
use peername_server::destination_list::AllowedDestination;
use peername_server::listeners::InheritedSockets;
use peername_server::own_addresses::OwnAddresses;
use peername_server::threads::start_request_threads;
use peername_server::workers::Workers;
use peername_server::workers::services::ServiceHandle;
use peername_sys::ipc::fd_passing;
use peername_sys::process::caps::{CapabilitySet, keep_only};
use peername_sys::process::pidfd::PidFd;
use peername_sys::process::secrets;
use peername_sys::process::stderr::write_line;
use peername_sys::tcp::listener::accept_queue_len;
use rustls_native_certs::CertificateResult;
use tokio::time::timeout;

use super::approval::{Mode, OutsideApprover};
use super::denial_report::{DenialReport, write_unknown_denials};
use super::fail_on_deny::send_verdict;
use super::helper::Helper;
use super::mediator_channel::{serve_mediator, wait_mediator_exit};
use super::options::{Args, JailPorts};
use crate::cmd::intercept::admission_log::{AdmissionFile, warn_if_replaced};
use crate::cmd::intercept::options::Intercept as Options;
use crate::cmd::intercept::setup::{JailPlan, Setup};
use crate::cmd::intercept::{client_capacity, new_state, usual_needs};
pub(super) use sockets::send_sockets;
use sockets::{JailSockets, receive_sockets};

/// Everything that the interceptor is started with, except the sockets.
pub(super) struct Interceptor {
    options: Options,
    process: Process,
    authority: Authority,
    host_roots: Arc<CertificateResult>,
    pub(super) ports: JailPorts,
    name_ranges: NameRanges,
    /// Taken by [`Self::start_helper`].
    helper: Option<Helper>,
    /// What the helper does, if there is one.
    mode: Option<Mode>,
    /// The rules of a jail that has neither access lists nor a check: those of `--allow-tcp`. `None` if the helper decides.
    fallback: Option<AccessRules>,
    denials: DenialReport,
    /// Whether a channel for the verdict of `--fail-on-deny` is inherited.
    has_verdict: bool,
    /// The working directory: options may name files relative to it.
    working_directory: Option<PathBuf>,
}

impl Interceptor {
    /// Reads and validates the options.
    pub(super) fn new(
        args: &Args,
        authority: Authority,
        host_roots: Arc<CertificateResult>,
    ) -> anyhow::Result<Self> {
        let mut process = Given::<Process>::default().options;
        process.sandbox = args.sandbox;
        process.logging = args.logging;
        process.set_default_workers(default_workers().min(MAX_WORKERS));
        let options = args.intercept();
        check_extra_ca(&options.extra_ca, &authority.certificates())
            .map_err(UsageError::from_error)?;
        let rules = options.access_rules()?;
        let ports = args.jail_ports(rules.as_deref())?;
        let mode = args.mode();
        let mut interceptor = Self {
            fallback: mode
                .is_none()
                .then(|| TunnelledDestination::access_rules(&ports.tunnelled)),
            options,
            process,
            authority,
            host_roots,
            ports,
            name_ranges: args.name_ranges()?,
            helper: None,
            mode,
            denials: DenialReport::new(args),
            has_verdict: args.fails_on_deny(),
            working_directory: env::current_dir().ok(),
        };
        // Reports what is wrong with the options before anything is started.
        interceptor.setup(Vec::new(), false)?;
        interceptor.helper = mode.map(|mode| Helper::new(args, mode)).transpose()?;
        Ok(interceptor)
    }

    fn setup(&self, addresses: Vec<SocketAddr>, has_v6: bool) -> Result<Setup, UsageError> {
        let listener = JailListener {
            names: Arc::new(SyntheticNames::new(self.name_ranges, has_v6)),
            opened: self.ports.opened.clone(),
            alternates: alternate_ports(&self.ports.all())
                .into_iter()
                .map(|(port, alternate)| (alternate, port))
                .collect(),
            tunnelled: self.ports.tunnelled.clone(),
        };
        let plan = JailPlan {
            addresses,
            listener: Arc::new(listener),
            ports: self.ports.of_options.iter().copied().collect(),
            is_learning: self.mode == Some(Mode::Learn),
            has_approver: self.mode.is_some(),
        };
        Setup::for_jail(
            self.process.clone(),
            self.options.clone(),
            plan,
            self.fallback.clone(),
        )
    }

    /// Starts the helper of `--ask` or `--learn`. Returns its channel, which the interceptor inherits.
    pub(super) fn start_helper(&mut self) -> peername_sys::Result<Option<OwnedFd>> {
        self.helper.take().map(Helper::spawn).transpose()
    }

    /// Whether everything is denied: no access list, check, helper or destination of `--allow-tcp` is configured.
    pub(super) fn denies_everything(&self) -> Result<bool, UsageError> {
        let has_lists = self.options.access_rules()?.is_some() || self.options.check.is_given();
        Ok(self.fallback.is_some() && self.ports.tunnelled.is_empty() && !has_lists)
    }

    /// The ports at which the interceptor answers connections to loopback in any case: those of `--port`, because the program may
    /// mean a proxy, and those that the destination policy opens there. At the others a connection is refused unless a server
    /// listens.
    pub(super) fn answered_on_loopback(&self, args: &Args) -> Result<BTreeSet<u16>, UsageError> {
        let (own_addresses, bound) = (OwnAddresses::fixed([]), BoundAddresses::default());
        let destinations = self
            .setup(Vec::new(), false)?
            .destinations(&own_addresses, &bound);
        let mut answered = self.ports.all();
        answered.retain(|port| args.ports.contains(port) || opens_loopback(&destinations, *port));
        Ok(answered)
    }

    /// Opens the file of `--log`, which the interceptor inherits.
    pub(super) fn open_log(&self) -> Result<Option<OwnedFd>, UsageError> {
        Ok(self.options.open_log()?.map(OwnedFd::from))
    }

    /// Runs the interceptor in this process until the program has exited. `inherited` are the channel to the jail's process and
    /// the descriptors of [`Inherited`], in the order of its fields. Returns the exit code.
    pub(super) fn run(self, mut inherited: Vec<OwnedFd>) -> u8 {
        // Closed at the end, after an error was printed: the jail's process then prints that the interceptor did not start.
        let channel = inherited.remove(0);
        match self.try_run(&channel, inherited) {
            Ok(()) => 0,
            Err(error) => {
                write_line(format_args!(
                    "peername: the interceptor: {}",
                    with_causes(&error)
                ));
                1
            }
        }
    }

    fn try_run(self, channel: &OwnedFd, inherited: Vec<OwnedFd>) -> anyhow::Result<()> {
        let inherited = Inherited::from_fds(inherited, &self)
            .context("a descriptor is missing that the jail hands over")?;
        if let Some(directory) = &self.working_directory {
            env::set_current_dir(directory)
                .with_context(|| format!("chdir(2) to {}", directory.display()))?;
        }
        let Some(sockets) = receive_sockets(channel)? else {
            return Ok(());
        };
        block_on(self.serve(channel, sockets, inherited))
    }

    async fn serve(
        self,
        channel: &OwnedFd,
        sockets: Vec<OwnedFd>,
        inherited: Inherited,
    ) -> anyhow::Result<()> {
        let Inherited {
            program,
            mediator,
            log,
            helper,
            verdict,
        } = inherited;
        secrets::disable_core_dumps()?;
        let sockets = JailSockets::sort(sockets)?;
        let listeners_by_port: Arc<[_]> = sockets.by_port()?.into();
        let setup = self.setup(sockets.addresses(), sockets.has_v6())?;
        let check = open_check(setup.check.clone()).map_err(UsageError::from_error)?;
        let own_addresses = OwnAddresses::read().await?;
        let workers = setup.common.process.workers();
        let inherited_listeners = InheritedSockets {
            // At the drain the program has exited, and its last connections may still be in the backlogs.
            owns_backlogs: true,
            ..InheritedSockets::new(sockets.listeners)?
        };
        let opened = Opened::open(
            setup.listen_plans(false),
            &setup.common.process,
            inherited_listeners,
            None,
        )?;
        keep_only(CapabilitySet::empty())?;
        let mut destinations =
            setup.destinations(&own_addresses, &opened.sockets.bound_addresses());
        if is_jailed() {
            // Names resolve to addresses of the outer jail, which has checks of its own.
            let outer_names = self.name_ranges.networks();
            destinations
                .allowed
                .extend(outer_names.map(AllowedDestination::with_all_ports));
        }
        let capacity = client_capacity(&setup.common.process)?;
        let upstream = setup
            .options
            .upstream(capacity.connections.get(), destinations);
        let exporter = setup.start_exporter()?;
        let state = new_state(
            &setup,
            self.authority,
            &self.host_roots,
            upstream,
            check.clone(),
            capacity.connections.clone(),
        )?;
        drop(self.host_roots);
        let confinement = setup.common.process.sandbox.confine(usual_needs(None))?;
        start_request_threads().context("starting a thread")?;
        let log_metadata = log.as_ref().map(File::metadata).transpose()?;
        let log = log.map(|file| LogFile::new(file, None));
        let admission_log = log.clone().map(AdmissionFile::shared);
        let _logs = setup
            .common
            .process
            .logging
            .start_beside_program(AUDIT_TARGET, log);
        confinement.log();
        let approver = approver(self.mode, helper)?;
        let (denials, failures) = (Arc::new(Denials::default()), Arc::new(Failures::default()));
        let state = state
            .with_summary(Arc::clone(&denials), Arc::clone(&failures))
            .with_approver(approver)
            .with_admission_log(admission_log)
            .with_spans(exporter.as_ref().map(SpanExporter::queue));
        let state = Arc::new(state);
        setup.warn_of_options();
        if let Some(check) = check {
            check.await_services();
        }
        let jail = Arc::clone(&setup.jail.as_ref().context("no jail")?.listener);
        let mediator = serve_mediator(
            mediator,
            Arc::clone(&listeners_by_port),
            Arc::clone(&jail),
            Arc::clone(&state),
        )?;
        let services = ServiceHandle::new(setup.services(&opened.sockets.ids(), &state));
        let intercept = Arc::new(Intercept::new(services, CurrentState::new(state)));
        let tasks = intercept.worker_tasks(workers);
        let listeners = opened.start(&intercept, capacity, tasks, |_| UdpTasks::default())?;
        tokio::spawn(own_addresses.keep_watching());
        serve_names(sockets.names_udp, sockets.names_tcp, &jail.names)
            .context("the name server of the jail")?;
        // Fails only if the jail's process has exited, because the jail could not be made.
        let _ = fd_passing::send_word(channel, READY, None);
        program.wait_exit().await?;
        let has_all_reports = wait_mediator_exit(mediator).await;
        let mut report = self.denials;
        // Written before the drain, because the shell goes on already, and other processes of the jail may prolong the drain to
        // its limit.
        report.write(&denials);
        let is_all_served = drain(listeners.workers, &listeners_by_port, &denials).await;
        if let (Some(path), Some(metadata)) = (&setup.options.log, log_metadata) {
            warn_if_replaced(path, &metadata);
        }
        let has_denials = report.finish(&denials, &failures);
        let is_anything_denied = has_denials || !has_all_reports || !is_all_served;
        if let Some(channel) = verdict {
            send_verdict(&channel, is_anything_denied);
        }
        if let Some(exporter) = exporter {
            exporter.stop().await;
        }
        Ok(())
    }
}

/// The descriptors that the interceptor's process inherits.
struct Inherited {
    program: PidFd,
    /// The mediator's channel.
    mediator: OwnedFd,
    /// The file of [`Interceptor::open_log`].
    log: Option<File>,
    /// The channel of [`Interceptor::start_helper`].
    helper: Option<OwnedFd>,
    /// Where the verdict for `--fail-on-deny` goes.
    verdict: Option<OwnedFd>,
}

impl Inherited {
    /// Sorts the descriptors, which are in the order of the fields; `None` if one is missing.
    fn from_fds(fds: Vec<OwnedFd>, interceptor: &Interceptor) -> Option<Self> {
        let mut fds = fds.into_iter();
        Some(Self {
            program: fds.next()?.into(),
            mediator: fds.next()?,
            log: match interceptor.options.log {
                Some(_) => Some(fds.next()?.into()),
                None => None,
            },
            helper: match interceptor.mode {
                Some(_) => Some(fds.next()?),
                None => None,
            },
            verdict: if interceptor.has_verdict {
                Some(fds.next()?)
            } else {
                None
            },
        })
    }
}

/// Whether the destination policy opens this port of loopback, to requests for the address or for `localhost`.
fn opens_loopback(destinations: &Destinations, port: u16) -> bool {
    LOCALHOST.into_iter().any(|ip| {
        let addr = SocketAddr::new(ip, port);
        let by_address = HostPort::from(addr);
        [by_address.at_localhost(), by_address]
            .iter()
            .any(|to| destinations.admit(addr, Requested::plain(to)).is_ok())
    })
}

/// Opens the check service and pins its Unix socket, so that the program can't replace the socket.
fn open_check(config: Option<CheckConfig>) -> Result<Option<CheckService>, ConfigError> {
    let Some(mut config) = config else {
        return Ok(None);
    };
    config.pin_sockets()?;
    CheckService::new(config).map(Some)
}

/// The approver that asks the helper on its channel.
fn approver(mode: Option<Mode>, helper: Option<OwnedFd>) -> io::Result<Option<Arc<dyn Approver>>> {
    Ok(match (mode, helper) {
        (Some(mode), Some(channel)) => Some(Arc::new(OutsideApprover::new(mode, channel)?)),
        _ => None,
    })
}

/// Starts the jail's name server on its sockets.
fn serve_names(
    udp: Vec<OwnedFd>,
    tcp: Vec<OwnedFd>,
    names: &Arc<SyntheticNames>,
) -> io::Result<()> {
    for socket in udp {
        serve_udp(socket, Arc::clone(names))?;
    }
    for socket in tcp {
        serve_tcp(socket, Arc::clone(names))?;
    }
    Ok(())
}

/// Drains the connections of the program, which has exited, and closes those that other processes of the jail keep open. Each
/// connection writes its audit lines. Returns `false`, and says so on standard error, if connections are left in the accept
/// backlogs (no process of the jail can connect since the mediator has exited), or were closed before they were decided.
async fn drain(mut workers: Workers, listeners: &[(u16, OwnedFd)], denials: &Denials) -> bool {
    workers.drain();
    let all_exited = async { while workers.next_exit().await.is_some() {} };
    let _ = timeout(DRAIN_LIMIT, all_exited).await;
    let unserved: usize = listeners
        .iter()
        .filter_map(|(_, socket)| accept_queue_len(socket).ok())
        .sum();
    denials.set_ending();
    workers.end();
    workers.join();
    let undecided = denials.undecided();
    if unserved > 0 {
        write_unknown_denials(&format!(
            "{unserved} were not accepted within {DRAIN_LIMIT:?} after the program's exit"
        ));
    }
    if undecided > 0 {
        write_unknown_denials(&format!(
            "{undecided} were closed by peername before they were decided"
        ));
    }
    unserved == 0 && undecided == 0
}

/// Waits until the interceptor serves; `false` if it has exited instead.
pub(super) fn wait_ready(channel: &OwnedFd) -> peername_sys::Result<bool> {
    let word = fd_passing::receive_word(channel)?;
    Ok(word.is_some_and(|(word, _)| word == READY))
}

/// The interceptor's reply once it serves.
const READY: u64 = 1;
/// One program rarely needs more workers; each has a thread and a pool of connections.
const MAX_WORKERS: usize = 4;
/// Limit of the drain, for connections that another process of the jail keeps open.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

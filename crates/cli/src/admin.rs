//! The admin endpoint's options and socket, for every long-running command.

pub(crate) mod client;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use peername_kernel::data_path::DataPath;
use peername_observe::admin::history::History;
use peername_observe::admin::{
    AdminAddr, AdminHandle, AdminListener, AdminServer, AllowedHosts, ConfigInForce, Health,
    Resources, UnixSocketFile,
};
use peername_proxy::reply_path::monitor::ReplyPathMonitor;
use peername_proxy::telemetry::advice::advise;
use peername_proxy::telemetry::counters::Counters;
use peername_proxy::telemetry::metrics::ProxyCollector;
use peername_proxy::udp::OpenSessions;
use peername_server::listeners::open_single;
use peername_server::workers::Workers;
use peername_server::workers::liveness::Liveness;
use peername_server::workers::phases::Phases;
use prometheus_client::registry::Registry;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::logging::LevelHandle;
use crate::upgrade::{Predecessor, SharedSocket, SocketInfo};
use crate::value::AsWritten;

/// `--admin` and `--admin-host`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct AdminArgs {
    /// Serve metrics, health and open connections on this socket: ADDR:PORT, or unix:PATH [default: none]
    #[arg(long, value_name = "ADDR|unix:PATH")]
    admin: Option<AsWritten<AdminAddr>>,
    /// A host name besides localhost and IP addresses in requests to --admin; may be repeated [default: this host's name]
    #[arg(long, value_name = "NAME", requires = "admin")]
    admin_host: Vec<String>,
}

impl AdminArgs {
    /// These options of the command line, or else those of the file.
    pub(crate) fn or(self, file: Self) -> Self {
        Self {
            admin: self.admin.or(file.admin),
            admin_host: match self.admin_host.as_slice() {
                [] => file.admin_host,
                _ => self.admin_host,
            },
        }
    }

    /// Opens the socket, if `--admin` names one, or adopts that of the previous process.
    ///
    /// # Errors
    ///
    /// The address or path can't be listened on.
    pub(crate) fn open(
        &self,
        previous: Option<&mut Predecessor>,
    ) -> anyhow::Result<Option<AdminListener>> {
        if let (Some(addr), Some(previous)) = (&self.admin, previous)
            && let Some(adopted) = previous.adopt_admin(&addr.value)
        {
            return Ok(Some(adopted));
        }
        let open = |addr: &AsWritten<AdminAddr>| match &addr.value {
            AdminAddr::Tcp(addr) => {
                let socket = open_single(*addr).context("--admin")?;
                Ok(AdminListener::Tcp(socket))
            }
            AdminAddr::Unix(path) => open_unix(path).map(AdminListener::Unix),
        };
        self.admin.as_ref().map(open).transpose()
    }

    /// The file of a Unix socket, which is removed at the end.
    pub(crate) fn socket_file(&self) -> Option<PathBuf> {
        match &self.admin.as_ref()?.value {
            AdminAddr::Tcp(_) => None,
            AdminAddr::Unix(path) => Some(path.clone()),
        }
    }

    /// The TCP port, for destination rules that refuse this process's own ports.
    pub(crate) fn port(&self) -> Option<u16> {
        match &self.admin.as_ref()?.value {
            AdminAddr::Tcp(addr) => Some(addr.port()),
            AdminAddr::Unix(_) => None,
        }
    }

    /// The host names that requests may be for.
    pub(crate) fn allowed_hosts(&self) -> AllowedHosts {
        AllowedHosts(match self.admin_host.as_slice() {
            [] => vec![peername_sys::host_name()],
            names => names.to_vec(),
        })
    }
}

/// A running `proxy` or `forward`, as far as its admin endpoint shows it.
pub(crate) struct ServedProxy<'a> {
    /// The name of the subcommand.
    pub(crate) command: &'static str,
    pub(crate) counters: Arc<Counters>,
    pub(crate) workers: &'a Workers,
    pub(crate) sessions: OpenSessions,
    pub(crate) kernel: Option<Arc<DataPath>>,
    /// `None` for `forward`, which connects from its own address.
    pub(crate) reply_path: Option<watch::Receiver<Arc<ReplyPathMonitor>>>,
    pub(crate) log_level: LevelHandle,
    pub(crate) config: ConfigInForce,
    pub(crate) history: History,
}

/// The admin endpoint while it is served.
#[derive(Debug)]
pub(crate) struct RunningAdmin {
    addr: String,
    handle: AdminHandle,
    task: AbortHandle,
}

impl RunningAdmin {
    /// Serves on the current runtime from now on.
    ///
    /// # Errors
    ///
    /// EMFILE.
    pub(crate) fn serve<H: Health>(
        args: &AdminArgs,
        listener: AdminListener,
        server: AdminServer<H>,
    ) -> anyhow::Result<Self> {
        let addr = args.admin.as_ref().map(|addr| addr.value.to_string());
        let handle = listener.handle().context("--admin")?;
        let task = tokio::spawn(server.serve(listener)).abort_handle();
        Ok(Self {
            addr: addr.unwrap_or_default(),
            handle,
            task,
        })
    }

    /// A duplicate of the socket, for the process that takes over.
    ///
    /// # Errors
    ///
    /// EMFILE.
    pub(crate) fn share(&self) -> anyhow::Result<SharedSocket> {
        let socket = self.handle.share().context("--admin")?;
        Ok((SocketInfo::Admin(self.addr.clone()), socket))
    }

    /// Accepts no more, if the process that takes over has adopted the socket.
    pub(crate) fn leave(&self, adopted: &[SocketInfo]) {
        if adopted.contains(&SocketInfo::Admin(self.addr.clone())) {
            self.handle.leave();
            self.task.abort();
        }
    }
}

/// Serves the admin endpoint of `proxy` or `forward` from now on, on the current runtime.
///
/// # Errors
///
/// EMFILE.
pub(crate) fn serve_proxy(
    listener: AdminListener,
    args: &AdminArgs,
    running: ServedProxy<'_>,
) -> anyhow::Result<RunningAdmin> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ProxyCollector {
        counters: running.counters,
        workers: running.workers.loads(),
        sessions: running.sessions.clone(),
        kernel: running.kernel,
    }));
    let health = ProxyHealth {
        liveness: running.workers.liveness(),
        phases: running.workers.phases(),
        reply_path: running.reply_path,
    };
    let resources = Resources {
        command: running.command,
        advise: Some(advise),
        connections: Some(Box::new(running.workers.connections())),
        sessions: Some(Box::new(running.sessions)),
        log_level: Some(Box::new(running.log_level)),
        config: Some(running.config),
        history: running.history,
        limit: Some(Arc::new(running.workers.limit())),
    };
    let server = AdminServer::new(registry, health, args.allowed_hosts(), resources);
    RunningAdmin::serve(args, listener, server)
}

/// The health of `proxy` and `forward`.
struct ProxyHealth {
    liveness: Liveness,
    phases: Phases,
    /// `None` for `forward`, which connects from its own address.
    reply_path: Option<watch::Receiver<Arc<ReplyPathMonitor>>>,
}

impl Health for ProxyHealth {
    async fn check_liveness(&self) {
        self.liveness.check().await;
    }

    async fn check_readiness(&self) -> Result<(), String> {
        if self.phases.is_drain_announced() {
            return Err("draining".to_owned());
        }
        let is_broken = self
            .reply_path
            .as_ref()
            .is_some_and(|path| !path.borrow().is_all_sound());
        match is_broken {
            true => Err("replies to spoofed connections do not come back to this host; see `peername doctor --config FILE`".to_owned()),
            false => Ok(()),
        }
    }

    fn is_draining(&self) -> bool {
        self.phases.is_draining()
    }
}

fn open_unix(path: &Path) -> anyhow::Result<UnixSocketFile> {
    UnixSocketFile::bind(path).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::AddrInUse => "another process listens there; stop it or use another path",
            ErrorKind::AlreadyExists => {
                "there is another file, not a socket; remove it or use another path"
            }
            ErrorKind::NotFound => {
                "its directory does not exist; create it (RuntimeDirectory= in a unit)"
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                "this process may not write to its directory"
            }
            ErrorKind::InvalidInput => "use a path of at most 96 bytes",
            _ => return anyhow!("--admin unix:{}: {error}", path.display()),
        };
        anyhow!("--admin unix:{}: {remedy}", path.display())
    })
}

//! The admin endpoint's options and socket, for every long-running command.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use peername_observe::admin::{
    AdminAddr, AdminHandle, AdminListener, AdminServer, AllowedHosts, Health, MAX_CONNECTIONS,
    ServedListener,
};
use peername_server::listeners::{InheritedSockets, open_single};
use peername_server::threads::spawn_with_runtime;
use peername_sys::ipc::fd_passing::refuse_descriptors;
use peername_sys::ipc::unix_socket_file::UnixSocketFile;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::handover::{Predecessor, SharedSocket, SocketInfo};

/// `--admin` and `--admin-host`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub struct AdminArgs {
    /// Serve metrics, health and open connections on this socket: ADDR:PORT, or unix:PATH; may be repeated [default: none]
    #[arg(long, value_name = "ADDR|unix:PATH", value_parser = AdminAddr::parse_own)]
    pub(crate) admin: Vec<AdminAddr>,
    /// A host name besides localhost and IP addresses in requests to --admin; may be repeated [default: this host's name]
    #[arg(long, value_name = "NAME", requires = "admin", hide_short_help = true)]
    pub(crate) admin_host: Vec<String>,
}

impl AdminArgs {
    /// Opens the listeners that `--admin` names, in their order. A listener that the service manager has passed is taken from
    /// `inherited`, and a listener of the previous process is adopted.
    pub fn open(
        &self,
        inherited: &mut InheritedSockets,
        mut previous: Option<&mut Predecessor>,
    ) -> anyhow::Result<Vec<OpenedAdmin>> {
        self.admin
            .iter()
            .map(|addr| take_or_open(addr, inherited, previous.as_deref_mut()))
            .collect()
    }

    /// Opens the sockets for a child process, which [adopts](Self::adopt) them.
    pub fn open_for_child(&self) -> anyhow::Result<Vec<OwnedFd>> {
        let listeners = self.open(&mut InheritedSockets::default(), None)?;
        listeners
            .iter()
            .map(|OpenedAdmin { listener, .. }| {
                let handle = listener.handle().context("--admin")?;
                // Dropping the listener must not remove the path.
                handle.give_up_path_ownership();
                handle.share().context("--admin")
            })
            .collect()
    }

    /// Adopts the sockets that another process has opened for these options, in their order.
    pub fn adopt(&self, sockets: Vec<OwnedFd>) -> Vec<OpenedAdmin> {
        self.admin
            .iter()
            .zip(sockets)
            .map(|(addr, socket)| OpenedAdmin {
                listener: AdminListener::adopt(addr.clone(), socket),
                info: SocketInfo::Admin(addr.to_string()),
            })
            .collect()
    }

    /// The files of Unix sockets, which are removed at the end.
    pub fn socket_files(&self) -> Vec<PathBuf> {
        self.admin
            .iter()
            .filter_map(|addr| match addr {
                AdminAddr::Tcp(_) => None,
                AdminAddr::Unix(path) => Some(path.clone()),
            })
            .collect()
    }

    /// The first address that the endpoint listens on; `None` without `--admin`.
    pub fn first(&self) -> Option<&AdminAddr> {
        self.admin.first()
    }

    /// The descriptors that the endpoint may have beside its listeners: for each address its connections, one more before the
    /// oldest is evicted, and two duplicates of the listener.
    pub(crate) fn max_descriptors(&self) -> usize {
        self.admin.len() * (MAX_CONNECTIONS + 3)
    }

    /// The TCP ports, for destination rules that refuse this process's own ports.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        self.admin.iter().filter_map(|addr| match addr {
            AdminAddr::Tcp(addr) => Some(addr.port()),
            AdminAddr::Unix(_) => None,
        })
    }

    /// The host names that requests may be for.
    pub fn allowed_hosts(&self) -> AllowedHosts {
        AllowedHosts(match self.admin_host.as_slice() {
            [] => vec![peername_sys::host_name()],
            names => names.to_vec(),
        })
    }
}

/// A listener of the admin endpoint from which nothing is accepted yet.
#[derive(Debug)]
pub struct OpenedAdmin {
    /// The listener.
    pub listener: AdminListener,
    /// Identifies the socket in an upgrade: a service manager's socket remains one.
    info: SocketInfo,
}

/// The admin endpoint before it is served. Its thread runs, so that nothing can fail any more.
#[derive(Debug, Default)]
pub struct PreparedAdmin {
    listeners: Vec<AdminListener>,
    /// For each listener, in their order.
    handles: Vec<(SocketInfo, AdminHandle)>,
    /// `None` without a listener.
    thread: Option<AdminThread>,
}

/// A thread of its own for the endpoint, so that requests delay neither bans, nor signals, nor the watch of this host's addresses
/// and routes.
#[derive(Debug)]
struct AdminThread {
    runtime: Handle,
    /// Ends the thread when it is dropped.
    running: oneshot::Sender<()>,
}

/// The admin endpoint while it is served. Dropping this ends it, and removes its paths.
#[derive(Debug, Default)]
pub struct RunningAdmin {
    sockets: Vec<ServedSocket>,
    /// Ends its thread when it is dropped.
    _thread: Option<oneshot::Sender<()>>,
}

/// A socket of the admin endpoint while it is served.
#[derive(Debug)]
struct ServedSocket {
    /// Identifies the socket in an upgrade.
    info: SocketInfo,
    handle: AdminHandle,
    listener: ServedListener,
}

impl PreparedAdmin {
    /// Starts the thread for these listeners, if there are any. Fails as [`spawn_with_runtime`] does.
    pub fn new(opened: Vec<OpenedAdmin>) -> anyhow::Result<Self> {
        if opened.is_empty() {
            return Ok(Self::default());
        }
        let mut prepared = Self {
            thread: Some(AdminThread::start().context("--admin")?),
            ..Self::default()
        };
        for OpenedAdmin { listener, info } in opened {
            let handle = listener.handle().context("--admin")?;
            prepared.handles.push((info, handle));
            prepared.listeners.push(listener);
        }
        Ok(prepared)
    }

    /// Serves from now on.
    pub fn serve<H: Health>(self, server: AdminServer<H>) -> RunningAdmin {
        let Some(AdminThread { runtime, running }) = self.thread else {
            return RunningAdmin::default();
        };
        let served = {
            let _entered = runtime.enter();
            server.start(self.listeners)
        };
        let sockets = self
            .handles
            .into_iter()
            .zip(served)
            .map(|((info, handle), listener)| ServedSocket {
                info,
                handle,
                listener,
            })
            .collect();
        RunningAdmin {
            sockets,
            _thread: Some(running),
        }
    }
}

impl AdminThread {
    fn start() -> io::Result<Self> {
        let (running, stopped) = oneshot::channel();
        let (runtime, _) = spawn_with_runtime("admin".to_owned(), move |runtime| {
            // `running` is dropped without a message.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
            Ok(())
        })?;
        Ok(Self { runtime, running })
    }
}

impl RunningAdmin {
    /// Duplicates the sockets for the process that takes over.
    pub fn share(&self) -> anyhow::Result<Vec<SharedSocket>> {
        let mut all: Vec<SharedSocket> = Vec::new();
        for socket in &self.sockets {
            let shared = socket.handle.share().context("--admin")?;
            all.push((socket.info.clone(), Arc::new(shared)));
        }
        Ok(all)
    }

    /// Closes the sockets that the process that takes over has adopted, and leaves their paths and clients to that process.
    pub fn leave(&mut self, adopted: &[SocketInfo]) {
        for socket in self
            .sockets
            .extract_if(.., |socket| adopted.contains(&socket.info))
        {
            socket.handle.give_up_path_ownership();
            socket.listener.leave();
        }
    }
}

impl Drop for RunningAdmin {
    fn drop(&mut self) {
        for socket in &self.sockets {
            socket.handle.remove_path();
        }
    }
}

/// Takes the listener from the service manager or the previous process, or else opens it.
fn take_or_open(
    addr: &AdminAddr,
    inherited: &mut InheritedSockets,
    mut previous: Option<&mut Predecessor>,
) -> anyhow::Result<OpenedAdmin> {
    if let AdminAddr::Tcp(addr) = addr {
        let given = match previous.as_deref_mut() {
            Some(previous) => previous.take_given(*addr),
            None => inherited.tcp.remove(addr),
        };
        if let Some(socket) = given {
            let listener = socket.try_clone().context("--admin")?;
            return Ok(OpenedAdmin {
                listener: AdminListener::Tcp(listener.into()),
                info: SocketInfo::Given(socket.label),
            });
        }
    }
    let listener = match previous.and_then(|previous| previous.adopt_admin(addr)) {
        Some(adopted) => adopted,
        None => open_socket(addr)?,
    };
    if let AdminAddr::Unix(_) = addr {
        refuse_descriptors(&listener);
    }
    Ok(OpenedAdmin {
        listener,
        info: SocketInfo::Admin(addr.to_string()),
    })
}

fn open_socket(addr: &AdminAddr) -> anyhow::Result<AdminListener> {
    match addr {
        AdminAddr::Tcp(addr) => {
            let socket = open_single(*addr).context("--admin")?;
            Ok(AdminListener::Tcp(socket))
        }
        AdminAddr::Unix(path) => open_unix(path).map(AdminListener::Unix),
    }
}

fn open_unix(path: &Path) -> anyhow::Result<UnixSocketFile> {
    UnixSocketFile::bind(path).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::AddrInUse => "another process listens there; stop it or use another path",
            ErrorKind::NotFound => {
                "its directory does not exist; create it (RuntimeDirectory= in a unit)"
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                "this process may not write to its directory"
            }
            _ => return anyhow!("--admin unix:{}: {error}", path.display()),
        };
        anyhow!("--admin unix:{}: {remedy}", path.display())
    })
}

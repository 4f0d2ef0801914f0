//! Requests of `peername upgrade`: an abstract Unix socket by the process id, on which the outcome is reported.

use std::fs;
use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::path::Path;

use anyhow::{Context, anyhow, bail, ensure};
use peername_sys::ipc::peer_process;
use peername_sys::process::namespace::NetworkNamespace;
use peername_sys::process::user::effective_uid;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};

use super::launcher::NAME as LAUNCHER;
use super::message::printable;

/// Accepts requests. The users that may send this process a signal may send one: its own and root.
#[derive(Debug)]
pub(crate) struct RequestSocket(Option<UnixListener>);

/// A process that waits for the outcome of an upgrade.
#[derive(Debug)]
pub(crate) struct Requester(UnixStream);

impl RequestSocket {
    /// Listens. Without the socket only SIGUSR2 requests an upgrade. Needs a tokio runtime.
    pub(crate) fn listen() -> Self {
        let listen = || -> io::Result<UnixListener> {
            let id = format!("/proc/self/ns/{PID_NAMESPACE}");
            let listener = StdListener::bind_addr(&address(Path::new(&id), std::process::id())?)?;
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        };
        Self(listen().ok())
    }

    /// Waits for the next request. Cancel-safe.
    pub(crate) async fn next(&self) -> Requester {
        let Some(listener) = &self.0 else {
            return std::future::pending().await;
        };
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::task::yield_now().await;
                continue;
            };
            let uid = stream.peer_cred().map(|peer| peer.uid());
            if uid.is_ok_and(|uid| uid == 0 || uid == effective_uid()) {
                return Requester(stream);
            }
        }
    }
}

impl Requester {
    /// Reports the outcome: the new process's id, or why there is none.
    pub(crate) async fn report(mut self, outcome: &Result<u32, String>) {
        let text = match outcome {
            Ok(pid) => format!("{UPGRADED}{pid}"),
            Err(why) => why.clone(),
        };
        // It may have stopped waiting.
        let _ = self.0.write_all(text.as_bytes()).await;
    }
}

/// Requests an upgrade of process `pid`, waits for the outcome and returns the new process's id.
///
/// # Errors
///
/// Why the process was not upgraded, or no request can be made.
pub(crate) fn request(pid: u32) -> anyhow::Result<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.with_context(|| format!("process {pid}"))?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    if let (Some(LAUNCHER), Some(parent)) = (field("Name:").map(str::trim), field("PPid:")) {
        let parent = parent.trim();
        bail!("process {pid} is a helper of process {parent}: use --pid {parent}");
    }
    // In its own namespace, the last one, it may have another number.
    let own_pid =
        field("NSpid:").and_then(|pids| pids.split_whitespace().next_back()?.parse().ok());
    let own_pid = own_pid.unwrap_or(pid);
    let enter = NetworkNamespace::of_process(pid).and_then(|network| network.enter());
    let namespace = format!("/proc/{pid}/ns/{PID_NAMESPACE}");
    let address = address(Path::new(&namespace), own_pid);
    let address = address.with_context(|| format!("{namespace} (run as root, or as its user)"))?;
    let stream = StdStream::connect_addr(&address).map_err(|error| {
        let hint = match &enter {
            Ok(()) => String::new(),
            Err(error) => format!("; its network namespace: {error}"),
        };
        anyhow!(
            "process {pid} takes no requests to upgrade ({error}{hint}): it is no `peername proxy`, `forward` or \
             `intercept`, is of an earlier version, or is stopping"
        )
    })?;
    let owner = peer_process(&stream)?;
    ensure!(
        owner == pid,
        "process {owner} has the socket of process {pid}: send SIGUSR2 to {pid} instead, and read its log"
    );
    let mut text = String::new();
    (&stream).take(MAX_REPORT).read_to_string(&mut text)?;
    match text.strip_prefix(UPGRADED).map(str::parse) {
        Some(Ok(new)) => Ok(new),
        _ if text.is_empty() => Err(anyhow!("process {pid} has ended without an answer")),
        _ => Err(anyhow!("process {pid} goes on: {}", printable(&text))),
    }
}

/// The socket's name. Where processes of several PID namespaces share a network, ids alone are ambiguous.
fn address(pid_namespace: &Path, pid: u32) -> io::Result<SocketAddr> {
    let namespace = fs::metadata(pid_namespace)?.ino();
    SocketAddr::from_abstract_name(format!("peername-upgrade-{namespace}-{pid}"))
}

const PID_NAMESPACE: &str = "pid";
const UPGRADED: &str = "upgraded to ";
/// In bytes: longer than any reason.
const MAX_REPORT: u64 = 64 << 10;

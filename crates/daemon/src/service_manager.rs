//! Notifies the service manager (sd_notify(3)), if there is one. A failed notification does not keep the process from serving.
//!
//! While the manager's queue is full, notifications wait in a queue of this process, in their order, so that neither a reload nor
//! a stop waits for the manager. A task of the runtime sends them; a process without a runtime calls [`send_queued`].

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use std::{env, io, thread};

use peername_server::workers::liveness::Liveness;
use peername_sys::ipc::fd_passing;
use peername_sys::process::stderr::try_write_line;
use sd_notify::NotifyState::{self, MonotonicUsec, Ready, Reloading, Status, Stopping, Watchdog};
use tokio::runtime::Handle;

/// Reports that the start or a reload is complete, with a summary for `systemctl status`, of which the first kilobyte is sent:
/// systemd ignores a message of more than 4 KiB, and READY with it.
pub fn ready(status: &str) {
    let mut status = status.replace('\n', "; ");
    if status.len() > MAX_STATUS {
        status.truncate(status.floor_char_boundary(MAX_STATUS));
        status.push('…');
    }
    notify(&[Ready, Status(&status)]);
}

/// Reports that a reload has begun; [`ready`] ends it. systemd 253 and later tell it from an earlier reload by its
/// timestamp.
pub fn reloading() {
    let now = NotifyState::monotonic_usec_now();
    notify(&[Reloading, now.unwrap_or(MonotonicUsec(0))]);
}

/// Reports that the process drains and accepts no new connections.
pub fn stopping() {
    notify(&[Stopping, Status("waiting for open connections")]);
}

/// Names the process to which an upgrade has handed over as the main one. From now on this process sends nothing: its messages
/// would be taken for those of the main process. READY is sent, too: the manager may ignore that of the new process, if it comes
/// before this message.
pub fn hand_over_to(pid: u32) {
    if !HANDED_OVER.swap(true, Relaxed) {
        deliver(format!("MAINPID={pid}\nREADY=1\n"));
    }
}

/// Waits until all notifications are sent. The manager ends the new process of an upgrade if this one exits before MAINPID is.
pub(crate) async fn wait_sent() {
    while !send_queued() {
        tokio::time::sleep(RETRY).await;
    }
}

/// Sends the notifications that wait for the manager's queue. Returns `false` if some still wait; call it again after [`RETRY`].
pub fn send_queued() -> bool {
    let mut queue = lock_queue();
    while let Some(message) = queue.front() {
        match send(message.as_bytes(), None) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) => warn(&format!("the service manager is not notified: {error}")),
            Ok(()) => {}
        }
        queue.pop_front();
    }
    true
}

/// Feeds the manager's watchdog, where it has one, for as long as this thread and all workers make progress.
pub fn keep_alive(liveness: Liveness) {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return;
    };
    // sd_watchdog_enabled(3) recommends half of the timeout; a third tolerates one late notification.
    let every = (limit / 3).max(Duration::from_millis(1));
    tokio::spawn(async move {
        loop {
            liveness.check().await;
            // The next one is sent soon enough if this one is lost.
            if !HANDED_OVER.load(Relaxed) {
                let _ = send(text_of(&[Watchdog]).as_bytes(), None);
            }
            tokio::time::sleep(every).await;
        }
    });
}

/// Whether the service manager keeps descriptors. FDSTORE is set by systemd since 254, and for older ones by the unit.
pub fn has_store() -> bool {
    socket().is_some() && env::var_os("FDSTORE").is_some()
}

/// Has the manager keep a descriptor under this name (FDSTORE, sd_pid_notify_with_fds(3)), until the descriptor reports
/// EPOLLHUP or EPOLLERR, or [`drop_stored`] is called. A unit needs FileDescriptorStoreMax=, or the manager closes it.
pub fn store(name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
    send_patiently(&format!("FDSTORE=1\nFDNAME={name}\n"), Some(fd))
}

/// Has the manager close the descriptors of this name.
pub fn drop_stored(name: &str) {
    let _ = send_patiently(&format!("FDSTOREREMOVE=1\nFDNAME={name}\n"), None);
}

/// Sends a message; repeats it for a while if the manager's queue is full.
fn send_patiently(message: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    for _ in 0..TRIES {
        match send(message.as_bytes(), fd) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(RETRY),
            sent => return sent,
        }
    }
    send(message.as_bytes(), fd)
}

fn notify(state: &[NotifyState<'_>]) {
    if HANDED_OVER.load(Relaxed) {
        return;
    }
    deliver(text_of(state));
}

fn text_of(state: &[NotifyState<'_>]) -> String {
    state.iter().map(|line| format!("{line}\n")).collect()
}

/// Sends a message after those that wait, or has it wait itself. If too many wait, the oldest is dropped: a later one replaces it.
fn deliver(message: String) {
    let mut queue = lock_queue();
    if queue.len() == MAX_QUEUED {
        queue.pop_front();
    }
    let is_first = queue.is_empty();
    queue.push_back(message);
    drop(queue);
    if send_queued() || !is_first {
        return;
    }
    warn("the service manager's queue is full: it is notified once it reads");
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(wait_sent());
    }
}

/// Writes warnings to standard error from now on. To be called by a process without a log.
pub fn warn_on_stderr() {
    WARNS_ON_STDERR.store(true, Relaxed);
}

fn warn(text: &str) {
    if WARNS_ON_STDERR.load(Relaxed) {
        try_write_line(&format!("peername: {text}"));
    } else {
        tracing::warn!("{text}");
    }
}

fn lock_queue() -> MutexGuard<'static, VecDeque<String>> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects to the manager's socket. To be called before the process is confined: after that, it can't open Unix sockets.
pub fn connect() {
    let _ = socket();
}

fn socket() -> Option<&'static UnixDatagram> {
    SOCKET.get_or_init(|| open().ok().flatten()).as_ref()
}

/// Sends without blocking: `sd_notify::notify` blocks while the manager's queue is full, which would block reloads and stops.
fn send(message: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let Some(socket) = socket() else {
        return Ok(());
    };
    fd_passing::send_bytes(socket, message, fd).map_err(|error| error.source)
}

fn open() -> io::Result<Option<UnixDatagram>> {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return Ok(None);
    };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(Some(socket))
}

/// `None` without a manager. Stays open until the process exits.
static SOCKET: OnceLock<Option<UnixDatagram>> = OnceLock::new();
static HANDED_OVER: AtomicBool = AtomicBool::new(false);
static WARNS_ON_STDERR: AtomicBool = AtomicBool::new(false);
/// The messages that wait for the manager's queue.
static QUEUE: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());
/// A reload has two messages: more than those of the last reloads are of no use.
const MAX_QUEUED: usize = 16;
/// The maximum length of STATUS.
const MAX_STATUS: usize = 1 << 10;
const TRIES: u32 = 100;
/// The interval at which a message is repeated while the manager's queue is full.
pub const RETRY: Duration = Duration::from_millis(10);

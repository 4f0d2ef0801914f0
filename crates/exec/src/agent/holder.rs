//! The holder: a process that keeps the agent's descriptors where no service manager does, and hands them to the next agent.
//!
//! It does nothing else, so that little can go wrong in it. Usually the agent starts the holder. It is no child of the agent,
//! has a process group of its own, and exits once there is neither an agent nor a container. Where a container runtime ends all
//! processes that the agent has started, `peername agent hold` runs it ([`hold`]), in a container of its own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::event::wait_readable;
use peername_sys::ipc::{fd_passing, seqpacket};
use peername_sys::process::{fork, limits, user};
use peername_sys::throttle::Throttle;
use peername_sys::{Result, SyscallError, seccomp};

use super::descriptor_store::{
    ContainerPart, DescriptorStore, StoreEvent, StoredDescriptor, StoredName,
};
use crate::stderr_line::try_write_line;

/// An error of the holder, or of an agent's connection to it.
#[derive(Debug, thiserror::Error)]
pub enum HolderError {
    /// A system call failed.
    #[error("the holder of descriptors, {}: {source}", path.display())]
    Call {
        /// The path of the holder's socket.
        path: PathBuf,
        /// The call, and its error.
        source: SyscallError,
    },
    /// The agent that uses the holder has not ended in time.
    #[error("the agent that runs already was asked to hand over, and has not ended in {} seconds", HANDOVER_TIMEOUT.as_secs())]
    Busy,
    /// The holder has exited, does not trust this user, or has dropped this agent because another one has connected later.
    #[error("the holder of descriptors, {}: it has exited, or has closed the connection", .0.display())]
    Closed(PathBuf),
    /// The kernel has discarded a descriptor, since this process has no room for it (MSG_CTRUNC, recvmsg(2)).
    #[error("the holder of descriptors, {}: this process can't receive {name}: it can open no more files (LimitNOFILE, ulimit -n)", path.display())]
    NoRoom {
        /// The path of the holder's socket.
        path: PathBuf,
        /// The name of the descriptor.
        name: StoredName,
    },
}

impl HolderError {
    fn at(path: &Path, source: SyscallError) -> Self {
        Self::Call {
            path: path.to_owned(),
            source,
        }
    }
}

/// Runs a holder in this process, for the agent that connects to the socket at `own`. When the first agent connects, this
/// holder takes over from the holder at `shared`, and listens at `shared`, too. The agent of that holder ends then. Returns
/// once another holder has taken over.
pub fn hold(shared: &Path, own: &Path) -> Result<(), HolderError> {
    let failed = |source| HolderError::at(own, source);
    let listener = seqpacket::listen_at(own).map_err(failed)?;
    let mut holder = Holder::new(listener).map_err(failed)?;
    // An agent connects once it has read its configuration. Until then the earlier agent serves.
    let first = holder.wait_first_agent().map_err(failed)?;
    // Connect before listening at `shared`: afterwards the path is our own socket.
    let previous = HolderConnection::connect(shared)?;
    // Listen before the other holder closes its descriptors: this may fail, and end this process.
    holder
        .listen_at(shared)
        .map_err(|source| HolderError::at(shared, source))?;
    if let Some(OpenedHolder { connection, stored }) = previous {
        holder.stored = stored;
        let _ = send(&connection.0, RETIRE, None);
    }
    holder.attach(first);
    while !holder.is_retired {
        holder.serve().map_err(failed)?;
    }
    Ok(())
}

/// An agent's connection to the holder.
#[derive(Debug)]
pub struct HolderConnection(OwnedFd);

/// An agent's connection to the holder, and the descriptors that the holder has kept.
#[derive(Debug)]
pub struct OpenedHolder {
    /// The connection.
    pub connection: HolderConnection,
    /// The descriptors that an earlier agent has stored.
    pub stored: Vec<StoredDescriptor>,
}

impl HolderConnection {
    /// Connects to the holder whose socket is at `path`, and takes over from the agent that uses it, if there is one. Starts a
    /// holder if there is none. This process must have one thread only.
    pub fn open(path: &Path) -> Result<OpenedHolder, HolderError> {
        if let Some(connected) = Self::connect(path)? {
            return Ok(connected);
        }
        start(path).map_err(|source| HolderError::at(path, source))?;
        Self::connect(path)?.ok_or_else(|| HolderError::Closed(path.to_owned()))
    }

    /// Connects as [`HolderConnection::open`] does; `None` if there is no holder.
    pub fn connect(path: &Path) -> Result<Option<OpenedHolder>, HolderError> {
        let failed = |source| HolderError::at(path, source);
        let connection = match seqpacket::connect_to(path) {
            Err(error) if is_absent(&error) => return Ok(None),
            connected => connected.map_err(failed)?,
        };
        fd_passing::set_time_limit(&connection, HANDOVER_TIMEOUT).map_err(failed)?;
        let stored = receive_all(&connection, path)?;
        let connection = Self(connection);
        Ok(Some(OpenedHolder { connection, stored }))
    }
}

impl DescriptorStore for HolderConnection {
    fn put(&mut self, name: StoredName, fd: BorrowedFd<'_>) -> io::Result<()> {
        send(&self.0, &format!("{PUT}{name}"), Some(fd)).map_err(|error| error.source)
    }

    fn remove(&mut self, name: StoredName) {
        // This fails if the holder has exited, which is the next event.
        let _ = send(&self.0, &format!("{REMOVE}{name}"), None);
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }

    fn next_event(&mut self) -> StoreEvent {
        match receive(&self.0) {
            Ok(Some(message)) if message.text == HAND_OVER => StoreEvent::TakenOver,
            _ => StoreEvent::Ended,
        }
    }
}

/// Whether the error of connect(2) means that there is no holder.
fn is_absent(error: &SyscallError) -> bool {
    matches!(
        error.source.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
    )
}

/// Receives all descriptors from the holder whose socket is at `path`.
fn receive_all(connection: &OwnedFd, path: &Path) -> Result<Vec<StoredDescriptor>, HolderError> {
    let mut stored = Vec::new();
    loop {
        let received = receive(connection).map_err(|error| match error.source.kind() {
            io::ErrorKind::WouldBlock => HolderError::Busy,
            io::ErrorKind::ConnectionReset => HolderError::Closed(path.to_owned()),
            _ => HolderError::at(path, error),
        })?;
        let Some(Message { text, fd }) = received else {
            return Err(HolderError::Closed(path.to_owned()));
        };
        if text == END {
            return Ok(stored);
        }
        let Some(name) = text.strip_prefix(PUT).and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Fail instead of continuing without this descriptor: the container that it belongs to would lose its clients, or the
        // supervisor of its accept(2), and no message would report that.
        let fd = fd.ok_or_else(|| HolderError::NoRoom {
            path: path.to_owned(),
            name,
        })?;
        stored.push(StoredDescriptor { name, fd });
    }
}

/// Starts a holder with a socket at `path`, for as long as it is needed.
fn start(path: &Path) -> Result<()> {
    let listener = seqpacket::listen_at(path)?;
    fork::spawn_detached([listener], |[listener]| {
        fork::set_thread_name(c"peername-hold");
        // The path is not removed, because another holder may have replaced the socket there.
        let served = Holder::new(listener).and_then(|mut holder| holder.serve_while_needed());
        u8::from(served.is_err())
    })
}

/// The state of the holder's process.
struct Holder {
    listeners: Vec<OwnedFd>,
    epoll: Epoll,
    stored: Vec<StoredDescriptor>,
    agent: Option<OwnedFd>,
    /// An agent that waits until the current one has ended.
    next: Option<OwnedFd>,
    /// Whether another holder has taken over.
    is_retired: bool,
}

impl Holder {
    fn new(listener: OwnedFd) -> Result<Self> {
        limits::raise_open_files()?;
        let mut holder = Self {
            listeners: Vec::new(),
            epoll: Epoll::new()?,
            stored: Vec::new(),
            agent: None,
            next: None,
            is_retired: false,
        };
        holder.listen(listener)?;
        Ok(holder)
    }

    fn listen_at(&mut self, path: &Path) -> Result<()> {
        self.listen(seqpacket::listen_at(path)?)
    }

    fn listen(&mut self, listener: OwnedFd) -> Result<()> {
        let token = FIRST_LISTENER + self.listeners.len() as u64;
        self.epoll.add(&listener, token, Interest::Readable)?;
        self.listeners.push(listener);
        Ok(())
    }

    /// Waits for the first connection of a process of this user.
    fn wait_first_agent(&self) -> Result<OwnedFd> {
        loop {
            wait_readable(self.listeners.iter().map(OwnedFd::as_fd), None)?;
            if let Some(first) = self.accept_trusted(0) {
                return Ok(first);
            }
        }
    }

    /// Serves until there is neither an agent nor a container, or another holder has taken over. The agent that has started
    /// this process connects at once.
    fn serve_while_needed(&mut self) -> Result<()> {
        loop {
            self.serve()?;
            let is_needed = self.agent.is_some() || self.has_containers();
            if self.is_retired || !is_needed {
                return Ok(());
            }
        }
    }

    /// Waits for events and serves them. Without an agent it returns after [`CHECK_INTERVAL`] at the latest, and closes what
    /// containers that have ended leave behind.
    fn serve(&mut self) -> Result<()> {
        let mut events = Vec::new();
        let limit = self.agent.is_none().then_some(CHECK_INTERVAL);
        self.epoll.wait(limit, &mut events)?;
        for event in events {
            match event.token {
                AGENT => self.serve_agent(),
                listener => self.accept(listener - FIRST_LISTENER),
            }
        }
        if self.agent.is_none() {
            self.close_ended_containers();
        }
        Ok(())
    }

    /// Accepts a connection, if it is from a process of this user.
    fn accept_trusted(&self, listener: usize) -> Option<OwnedFd> {
        let listener = self.listeners.get(listener)?;
        let accepted = seqpacket::accept_from(listener).ok()?;
        let peer = seqpacket::peer_user(&accepted).ok()?;
        (peer == user::effective_uid()).then_some(accepted)
    }

    /// Accepts an agent and serves it. If another agent is being served, that one is asked to hand over first.
    fn accept(&mut self, listener: u64) {
        let Some(connection) = self.accept_trusted(listener as usize) else {
            return;
        };
        match &self.agent {
            Some(agent) => {
                let _ = send(agent, HAND_OVER, None);
                self.next = Some(connection);
            }
            None => self.attach(connection),
        }
    }

    /// Sends all descriptors to an agent, which is served from now on.
    fn attach(&mut self, connection: OwnedFd) {
        let sent = fd_passing::set_time_limit(&connection, SEND_TIMEOUT)
            .and_then(|()| {
                self.stored.iter().try_for_each(|stored| {
                    let text = format!("{PUT}{}", stored.name);
                    send(&connection, &text, Some(stored.fd.as_fd()))
                })
            })
            .and_then(|()| send(&connection, END, None))
            .and_then(|()| self.epoll.add(&connection, AGENT, Interest::Readable));
        if sent.is_ok() {
            self.agent = Some(connection);
        }
    }

    /// Handles a message of the agent. If the agent has exited, the next one is served.
    fn serve_agent(&mut self) {
        let Some(agent) = &self.agent else {
            return;
        };
        match receive(agent) {
            Ok(Some(message)) => self.handle(message),
            _ => {
                self.agent = None;
                if let Some(next) = self.next.take() {
                    self.attach(next);
                }
            }
        }
    }

    fn handle(&mut self, message: Message) {
        let Message { text, fd } = message;
        if text == RETIRE {
            self.stored.clear();
            self.is_retired = true;
            return;
        }
        let parse_name = |verb| text.strip_prefix(verb)?.parse::<StoredName>().ok();
        if let Some(name) = parse_name(PUT) {
            match fd {
                Some(fd) => {
                    self.remove(name);
                    self.stored.push(StoredDescriptor { name, fd });
                }
                None => log_discarded(name),
            }
        } else if let Some(name) = parse_name(REMOVE) {
            self.remove(name);
        }
    }

    fn remove(&mut self, name: StoredName) {
        self.stored.retain(|stored| stored.name != name);
    }

    /// Whether a container's seccomp listener is stored: without one, the other parts are useless.
    fn has_containers(&self) -> bool {
        let mut names = self.stored.iter().map(|stored| stored.name);
        names.any(|name| container_of_listener(name).is_some())
    }

    /// Closes the descriptors of containers without a process.
    fn close_ended_containers(&mut self) {
        let mut ended = Vec::new();
        for stored in &self.stored {
            if let Some(number) = container_of_listener(stored.name)
                && seccomp::has_no_process(&stored.fd)
            {
                ended.push(number);
            }
        }
        self.stored.retain(|stored| match stored.name {
            StoredName::Container { number, .. } => !ended.contains(&number),
            StoredName::Socket => true,
        });
    }
}

/// The number of the container whose seccomp listener has this name.
fn container_of_listener(name: StoredName) -> Option<u64> {
    match name {
        StoredName::Container {
            number,
            part: ContainerPart::Calls,
        } => Some(number),
        _ => None,
    }
}

/// Logs that the kernel has discarded the descriptor of a message (MSG_CTRUNC, recvmsg(2)). The agent does not learn of it,
/// because it waits for no answer.
fn log_discarded(name: StoredName) {
    if DISCARDED_LOG.pass().is_some() {
        try_write_line(&format!(
            "peername: the holder of descriptors can't keep {name}: it can open no more files (LimitNOFILE), so containers fail if \
             the agent dies"
        ));
    }
}

static DISCARDED_LOG: Throttle = Throttle::new();

/// A message between an agent and the holder.
struct Message {
    text: String,
    fd: Option<OwnedFd>,
}

fn send(connection: &OwnedFd, text: &str, fd: Option<BorrowedFd<'_>>) -> Result<()> {
    fd_passing::send_bytes(connection, text.as_bytes(), fd)
}

/// Receives a message; `None` if the other end is closed.
fn receive(connection: &OwnedFd) -> Result<Option<Message>> {
    let mut bytes = [0; MAX_MESSAGE];
    let (len, fd) = fd_passing::receive_bytes(connection, &mut bytes)?;
    let text = bytes.get(..len).filter(|text| !text.is_empty());
    Ok(text.map(|text| Message {
        text: String::from_utf8_lossy(text).into_owned(),
        fd,
    }))
}

/// With a descriptor, and followed by its name. To the holder: store the descriptor. To an agent: this descriptor is stored.
const PUT: &str = "put ";
/// To the holder, followed by a name: close the descriptor.
const REMOVE: &str = "remove ";
/// To an agent, after the last descriptor.
const END: &str = "end";
/// To the holder: another holder has taken over.
const RETIRE: &str = "retire";
/// To the agent: another agent waits.
const HAND_OVER: &str = "hand over";
/// The maximum size of a message in bytes.
const MAX_MESSAGE: usize = 64;
/// The time in which an agent's predecessor must end.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);
/// The time in which an agent must receive each message.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval at which the holder checks for containers that have ended, while there is no agent.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The epoll token of the agent; the tokens from `FIRST_LISTENER` on are those of the listeners.
const AGENT: u64 = 0;
const FIRST_LISTENER: u64 = 1;

#[cfg(test)]
mod tests;

//! The holder: a process that keeps the agent's descriptors where no service manager does, and hands them to the next agent.
//!
//! It does nothing else, so that there is little to go wrong in it. The agent starts one, which is no child of it and in a process group
//! of its own, and ends once there is neither an agent nor a container; or [`hold`] runs one, where a container runtime ends all
//! processes that the agent has started.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::event::wait_readable;
use peername_sys::ipc::{fd_passing, seqpacket};
use peername_sys::process::{daemonize, limits, user};
use peername_sys::{SyscallError, seccomp};

use super::descriptor_store::{DescriptorStore, Part, StoreEvent, StoredDescriptor, StoredName};

type Result<T, E = SyscallError> = std::result::Result<T, E>;

/// Why there is no holder.
#[derive(Debug, thiserror::Error)]
pub enum HolderError {
    /// A system call failed.
    #[error("the holder of descriptors, {}: {source}", path.display())]
    Call {
        /// The path of its socket.
        path: PathBuf,
        /// The call, and its error.
        source: SyscallError,
    },
    /// The agent that uses it has not ended.
    #[error("the agent that runs already was asked to hand over, and has not ended in {} seconds", HANDOVER_LIMIT.as_secs())]
    Busy,
    /// The holder has exited, does not trust this user, or serves an agent that connected later.
    #[error("the holder of descriptors, {}: it has exited, or has closed the connection", .0.display())]
    Closed(PathBuf),
}

impl HolderError {
    fn at(path: &Path, source: SyscallError) -> Self {
        Self::Call {
            path: path.to_owned(),
            source,
        }
    }
}

/// Runs a holder in this process, for the agent that connects to the socket at `own`. Its first agent takes over from the holder at
/// `shared`, whose agent ends then; from then on this holder listens there, too. Returns once another holder has taken over.
pub fn hold(shared: &Path, own: &Path) -> Result<(), HolderError> {
    let failed = |source| HolderError::at(own, source);
    let listener = seqpacket::listen_at(own).map_err(failed)?;
    let mut holder = Holder::new(listener).map_err(failed)?;
    // The agent connects once it has read its configuration: until then the one that runs goes on.
    let first = holder.wait_first_agent().map_err(failed)?;
    // Once only: from then on the listener at `shared` is this process's own.
    if let Some(previous) = HolderClient::connect(shared)? {
        holder.kept = previous.stored;
        let _ = send(&previous.holder.0, RETIRE, None);
    }
    holder
        .listen_at(shared)
        .map_err(|source| HolderError::at(shared, source))?;
    holder.attach(first);
    while !holder.is_retired {
        holder.serve().map_err(failed)?;
    }
    Ok(())
}

/// An agent's connection to the holder.
#[derive(Debug)]
pub struct HolderClient(OwnedFd);

/// A connection, and the descriptors that the holder has kept.
#[derive(Debug)]
pub struct Connected {
    /// The connection.
    pub holder: HolderClient,
    /// What an earlier agent has stored.
    pub stored: Vec<StoredDescriptor>,
}

impl HolderClient {
    /// Connects to the holder whose socket is at `path`, and takes over from the agent that uses it, if there is one. Starts a
    /// holder if there is none. This process must have one thread only.
    pub fn open(path: &Path) -> Result<Connected, HolderError> {
        match Self::connect(path)? {
            Some(connected) => Ok(connected),
            None => {
                start(path).map_err(|source| HolderError::at(path, source))?;
                Self::connect(path)?.ok_or_else(|| HolderError::Closed(path.to_owned()))
            }
        }
    }

    /// Connects to the holder whose socket is at `path`, as [`HolderClient::open`]; `None` if there is no holder.
    pub fn connect(path: &Path) -> Result<Option<Connected>, HolderError> {
        let failed = |source| HolderError::at(path, source);
        let connection = match seqpacket::connect_to(path) {
            Err(error) if is_absent(&error) => return Ok(None),
            connected => connected.map_err(failed)?,
        };
        fd_passing::set_time_limit(&connection, HANDOVER_LIMIT).map_err(failed)?;
        let stored = receive_all(&connection, path)?;
        let holder = Self(connection);
        Ok(Some(Connected { holder, stored }))
    }
}

impl DescriptorStore for HolderClient {
    fn put(&mut self, name: StoredName, fd: BorrowedFd<'_>) -> io::Result<()> {
        send(&self.0, &format!("{PUT}{name}"), Some(fd)).map_err(|error| error.source)
    }

    fn remove(&mut self, name: StoredName) {
        // If the holder has ended, that is the next event.
        let _ = send(&self.0, &format!("{REMOVE}{name}"), None);
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }

    fn next_event(&mut self) -> StoreEvent {
        match receive(&self.0) {
            Ok(Some(message)) if message.text == TAKE_OVER => StoreEvent::TakenOver,
            _ => StoreEvent::Ended,
        }
    }
}

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
        });
        let Message { text, fd } = received?.ok_or_else(|| HolderError::Closed(path.to_owned()))?;
        if text == END {
            return Ok(stored);
        }
        let name = text.strip_prefix(PUT).and_then(|name| name.parse().ok());
        if let (Some(name), Some(fd)) = (name, fd) {
            stored.push(StoredDescriptor { name, fd });
        }
    }
}

fn start(path: &Path) -> Result<()> {
    let listener = seqpacket::listen_at(path)?;
    daemonize::spawn_detached([listener], |[listener]| {
        daemonize::set_thread_name(c"peername-hold");
        // The path stays: another holder may have replaced it.
        let held = Holder::new(listener).and_then(|mut holder| holder.serve_while_needed());
        u8::from(held.is_err())
    })
}

/// The holder itself.
struct Holder {
    listeners: Vec<OwnedFd>,
    epoll: Epoll,
    kept: Vec<StoredDescriptor>,
    agent: Option<OwnedFd>,
    /// An agent that waits until the other one has ended.
    next: Option<OwnedFd>,
    /// Another holder has everything.
    is_retired: bool,
}

impl Holder {
    fn new(listener: OwnedFd) -> Result<Self> {
        limits::raise_open_files()?;
        let mut holder = Self {
            listeners: Vec::new(),
            epoll: Epoll::new()?,
            kept: Vec::new(),
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
        let number = FIRST_LISTENER + self.listeners.len() as u64;
        self.epoll.add(&listener, number, Interest::Readable)?;
        self.listeners.push(listener);
        Ok(())
    }

    /// Waits for the first connection of this user.
    fn wait_first_agent(&self) -> Result<OwnedFd> {
        loop {
            wait_readable(self.listeners.iter().map(OwnedFd::as_fd), None)?;
            if let Some(first) = self.accept_trusted(0) {
                return Ok(first);
            }
        }
    }

    /// Keeps descriptors until there is neither an agent nor a container. The agent that has started this process connects at once.
    fn serve_while_needed(&mut self) -> Result<()> {
        loop {
            self.serve()?;
            if self.is_retired || self.agent.is_none() && !self.has_containers() {
                return Ok(());
            }
        }
    }

    /// Serves what has come, after a while at the latest where there is no agent.
    fn serve(&mut self) -> Result<()> {
        let mut found = Vec::new();
        let limit = self.agent.is_none().then_some(CHECK_INTERVAL);
        self.epoll.wait(limit, &mut found)?;
        for event in found {
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

    /// Accepts a connection, if it is one of this user.
    fn accept_trusted(&self, listener: usize) -> Option<OwnedFd> {
        let listener = self.listeners.get(listener)?;
        let accepted = seqpacket::accept_from(listener).ok()?;
        let peer = seqpacket::peer_user(&accepted).ok()?;
        (peer == user::effective_uid()).then_some(accepted)
    }

    fn accept(&mut self, listener: u64) {
        let Some(connection) = self.accept_trusted(listener as usize) else {
            return;
        };
        match &self.agent {
            Some(agent) => {
                let _ = send(agent, TAKE_OVER, None);
                self.next = Some(connection);
            }
            None => self.attach(connection),
        }
    }

    /// Hands all descriptors to an agent, which is served from now on.
    fn attach(&mut self, connection: OwnedFd) {
        let sent = fd_passing::set_time_limit(&connection, SEND_LIMIT)
            .and_then(|()| {
                self.kept.iter().try_for_each(|stored| {
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
            self.kept.clear();
            self.is_retired = true;
            return;
        }
        let name_after = |verb| text.strip_prefix(verb)?.parse::<StoredName>().ok();
        if let (Some(name), Some(fd)) = (name_after(PUT), fd) {
            self.remove(name);
            self.kept.push(StoredDescriptor { name, fd });
        } else if let Some(name) = name_after(REMOVE) {
            self.remove(name);
        }
    }

    fn remove(&mut self, name: StoredName) {
        self.kept.retain(|stored| stored.name != name);
    }

    /// Without its listener a container has nothing left to keep.
    fn has_containers(&self) -> bool {
        self.kept
            .iter()
            .any(|stored| is_seccomp_listener(stored.name))
    }

    /// Closes the descriptors of containers without a process.
    fn close_ended_containers(&mut self) {
        let ended: Vec<u64> = self.kept.iter().filter_map(number_if_ended).collect();
        self.kept.retain(|stored| match stored.name {
            StoredName::Container { number, .. } => !ended.contains(&number),
            StoredName::Socket => true,
        });
    }
}

/// The number of a container without a process, of which this is the seccomp listener.
fn number_if_ended(stored: &StoredDescriptor) -> Option<u64> {
    match stored.name {
        StoredName::Container { number, .. } if is_seccomp_listener(stored.name) => {
            seccomp::is_over(&stored.fd).then_some(number)
        }
        _ => None,
    }
}

fn is_seccomp_listener(name: StoredName) -> bool {
    matches!(
        name,
        StoredName::Container {
            part: Part::Calls,
            ..
        }
    )
}

/// A message between agent and holder.
struct Message {
    text: String,
    fd: Option<OwnedFd>,
}

fn send(connection: &OwnedFd, text: &str, fd: Option<BorrowedFd<'_>>) -> Result<()> {
    fd_passing::send_bytes(connection, text.as_bytes(), fd)
}

/// `None` once the other end is closed.
fn receive(connection: &OwnedFd) -> Result<Option<Message>> {
    let mut bytes = [0; MAX_MESSAGE];
    let (len, fd) = fd_passing::receive_bytes(connection, &mut bytes)?;
    let text = bytes.get(..len).filter(|text| !text.is_empty());
    Ok(text.map(|text| Message {
        text: String::from_utf8_lossy(text).into_owned(),
        fd,
    }))
}

const PUT: &str = "put ";
const REMOVE: &str = "remove ";
/// After the last descriptor.
const END: &str = "end";
/// Another holder has taken over.
const RETIRE: &str = "retire";
/// Another agent waits.
const TAKE_OVER: &str = "take over";
const MAX_MESSAGE: usize = 64;
/// How long an agent waits for its predecessor to end.
const HANDOVER_LIMIT: Duration = Duration::from_secs(10);
const SEND_LIMIT: Duration = Duration::from_secs(5);
/// How often the holder looks for containers that have ended, while there is no agent.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
const AGENT: u64 = 0;
const FIRST_LISTENER: u64 = 1;

#[cfg(test)]
mod tests {
    use std::{env, fs, process, thread};

    use super::*;

    /// The next agent is served then, and this holder is not asked to hand over to itself.
    #[test]
    fn first_agent_may_exit_before_it_has_the_descriptors() {
        let directory = env::temp_dir().join(format!("peername-hold-{}", process::id()));
        fs::create_dir_all(&directory).unwrap();
        let [shared, own] = ["shared", "own"].map(|name| directory.join(name));
        let holder = {
            let (shared, own) = (shared.clone(), own.clone());
            thread::spawn(move || hold(&shared, &own))
        };
        let first = loop {
            match seqpacket::connect_to(&own) {
                Ok(first) => break first,
                Err(error) => assert!(is_absent(&error), "{error}"),
            }
            thread::sleep(Duration::from_millis(1));
        };
        drop(first);
        for path in [&own, &shared] {
            let next = wait_connected(path);
            assert!(next.stored.is_empty());
            drop(next);
        }
        let last = wait_connected(&own);
        send(&last.holder.0, RETIRE, None).unwrap();
        holder.join().unwrap().unwrap();
        fs::remove_dir_all(&directory).unwrap();
    }

    /// Connects once the holder listens at `path`.
    fn wait_connected(path: &Path) -> Connected {
        loop {
            if let Some(connected) = HolderClient::connect(path).unwrap() {
                return connected;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

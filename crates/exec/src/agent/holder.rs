//! The holder: a process that keeps the agent's descriptors where no service manager does, and hands them to the next agent.
//!
//! It does nothing else, so that there is little to go wrong in it. It is no child of the agent and in a process group of its own, and
//! ends once there is neither an agent nor a container.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use peername_sys::event::epoll::{Epoll, Interest};
use peername_sys::ipc::{fd_passing, seqpacket};
use peername_sys::process::{daemonize, user};
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
}

/// A connection to the holder.
#[derive(Debug)]
pub struct Holder(OwnedFd);

impl Holder {
    /// Connects to the holder whose socket is at `path`, and takes over from the agent that uses it, if there is one. Starts a
    /// holder if there is none. This process must have one thread only.
    ///
    /// # Errors
    ///
    /// [`HolderError`].
    pub fn open(path: &Path) -> Result<(Self, Vec<StoredDescriptor>), HolderError> {
        let failed = |source| HolderError::Call {
            path: path.to_owned(),
            source,
        };
        let line = match seqpacket::connect_to(path) {
            Err(error) if is_absent(&error) => {
                start(path).map_err(failed)?;
                seqpacket::connect_to(path)
            }
            connected => connected,
        };
        let line = line.map_err(failed)?;
        fd_passing::set_time_limit(&line, HANDOVER_LIMIT).map_err(failed)?;
        let stored = receive_all(&line).ok_or(HolderError::Busy)?;
        Ok((Self(line), stored))
    }
}

impl DescriptorStore for Holder {
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
            Ok(Some(message)) if message.text == OVER => StoreEvent::TakenOver,
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

/// Receives all descriptors. `None` if the holder closes the connection before, or the time is over.
fn receive_all(line: &OwnedFd) -> Option<Vec<StoredDescriptor>> {
    let mut stored = Vec::new();
    loop {
        let Message { text, fd } = receive(line).ok()??;
        if text == END {
            return Some(stored);
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
        let held = Keeper::new(listener).and_then(Keeper::run);
        let _ = std::fs::remove_file(path);
        u8::from(held.is_err())
    })
}

/// The holder, from inside.
struct Keeper {
    listener: OwnedFd,
    epoll: Epoll,
    kept: Vec<StoredDescriptor>,
    agent: Option<OwnedFd>,
    /// An agent that waits until the other one has ended.
    next: Option<OwnedFd>,
}

impl Keeper {
    fn new(listener: OwnedFd) -> Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(&listener, LISTENER, Interest::Readable)?;
        Ok(Self {
            listener,
            epoll,
            kept: Vec::new(),
            agent: None,
            next: None,
        })
    }

    /// Keeps descriptors until there is neither an agent nor a container.
    fn run(mut self) -> Result<()> {
        let mut found = Vec::new();
        loop {
            let limit = self.agent.is_none().then_some(CHECK_INTERVAL);
            self.epoll.wait(limit, &mut found)?;
            for event in found.drain(..) {
                match event.token {
                    LISTENER => self.accept(),
                    _ => self.serve_agent(),
                }
            }
            if self.agent.is_none() {
                self.close_ended_containers();
                if !self.has_containers() {
                    return Ok(());
                }
            }
        }
    }

    fn accept(&mut self) {
        let Ok(line) = seqpacket::accept_from(&self.listener) else {
            return;
        };
        if !seqpacket::peer_user(&line).is_ok_and(|peer| peer == user::effective_uid()) {
            return;
        }
        match &self.agent {
            Some(agent) => {
                let _ = send(agent, OVER, None);
                self.next = Some(line);
            }
            None => self.attach(line),
        }
    }

    /// Hands all descriptors to an agent, which is served from now on.
    fn attach(&mut self, line: OwnedFd) {
        let sent = fd_passing::set_time_limit(&line, SEND_LIMIT)
            .and_then(|()| {
                self.kept.iter().try_for_each(|stored| {
                    let text = format!("{PUT}{}", stored.name);
                    send(&line, &text, Some(stored.fd.as_fd()))
                })
            })
            .and_then(|()| send(&line, END, None))
            .and_then(|()| self.epoll.add(&line, AGENT, Interest::Readable));
        if sent.is_ok() {
            self.agent = Some(line);
        }
    }

    fn serve_agent(&mut self) {
        let Some(agent) = &self.agent else {
            return;
        };
        match receive(agent) {
            Ok(Some(message)) => self.obey(message),
            _ => {
                self.agent = None;
                if let Some(next) = self.next.take() {
                    self.attach(next);
                }
            }
        }
    }

    fn obey(&mut self, message: Message) {
        let Message { text, fd } = message;
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

    fn has_containers(&self) -> bool {
        self.kept
            .iter()
            .any(|stored| stored.name != StoredName::Socket)
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
        StoredName::Container {
            number,
            part: Part::Calls,
        } => seccomp::is_over(&stored.fd).then_some(number),
        _ => None,
    }
}
/// A message between agent and holder.
struct Message {
    text: String,
    fd: Option<OwnedFd>,
}

fn send(line: &OwnedFd, text: &str, fd: Option<BorrowedFd<'_>>) -> Result<()> {
    fd_passing::send_bytes(line, text.as_bytes(), fd)
}

/// `None` once the other end is closed.
fn receive(line: &OwnedFd) -> Result<Option<Message>> {
    let mut bytes = [0; MAX_MESSAGE];
    let (len, fd) = fd_passing::receive_bytes(line, &mut bytes)?;
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
/// Another agent waits.
const OVER: &str = "over";
const MAX_MESSAGE: usize = 64;
/// How long an agent waits for its predecessor to end.
const HANDOVER_LIMIT: Duration = Duration::from_secs(10);
const SEND_LIMIT: Duration = Duration::from_secs(5);
/// How often the holder looks for containers that have ended, while there is no agent.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
const LISTENER: u64 = 0;
const AGENT: u64 = 1;

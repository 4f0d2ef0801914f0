//! Makes connect(2) and bind(2) for the program, and judges calls about other processes (seccomp_unotify(2)).
//!
//! ```text
//!   outside            │ jail                     │ program
//!                      │ mediator ◀── listener ── │ connect(fd, "/run/x")
//!                      │   opens /run/x as the program would, compares the file with those that it knows,
//!                      │   connects a duplicate of fd to that file, answers
//! ```
//!
//! A socket that the program may connect to is known as a file, never by its path: what the program renames, links or mounts
//! changes nothing. No call is continued after its arguments were looked at in memory: another thread could change them, or
//! put another socket at the descriptor.
//!
//! It runs in the jail's first user namespace: it reaches no network outside, and the program, which is in the second, has no
//! access to it. If it is killed, these calls fail with ENOSYS, and the program has no network. It exits with the program, as the
//! interceptor does.
//!
//! | module | |
//! |---|---|
//! | [`allowed`] | the sockets of `--allow-unix` |
//! | `bound` | the sockets that the program has bound |
//! | `call_error` | the error of a call, or of the mediator |
//! | `caller` | the directories and the identity of a caller |
//! | `covers` | covers files again that were replaced outside |
//! | `pending_connects` | connections that the mediator makes, while their callers wait |
//! | [`ports`] | the ports of the jail's listeners, which the program's own servers take |

pub mod allowed;
mod bound;
mod call_error;
mod caller;
mod covers;
mod pending_connects;
pub mod ports;

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use peername_sys::ipc::fd_passing;
use peername_sys::ipc::foreign_fd::ForeignFd;
use peername_sys::process::caps::{CapabilitySet, set_effective};
use peername_sys::process::daemonize;
use peername_sys::process::limits;
use peername_sys::process::namespace::UserNamespace;
use peername_sys::process::pidfd::PidFd;
use peername_sys::process::secrets;
use peername_sys::process::stderr::try_write_line;
use peername_sys::seccomp::{
    AddressArgument, MediatedCall, Notification, NotificationListener, ThreadCache, WaitOutcome,
};
use peername_sys::{Errno, Result};

use crate::JailError;
use crate::files::Cover;
use allowed::AllowedSockets;
use bound::BoundSockets;
use call_error::CallError;
use caller::{Caller, CallerDirectories, Directories, UnixName};
use covers::WatchedCovers;
use pending_connects::{Connecting, PendingConnects, Target};
use ports::ListenerPorts;

/// The program's end of the channel to its mediator, which exits when this is closed and nothing was sent.
#[derive(Debug)]
pub struct MediatorChannel(OwnedFd);

/// Starts the mediator in this process's namespaces, which are the jail's, before the program has its own. `reports`: whether
/// it writes a line to standard error for each connection that it refuses.
///
/// # Errors
///
/// [`JailError::Mediator`].
pub fn spawn(
    allowed: AllowedSockets,
    ports: ListenerPorts,
    covers: Vec<Cover>,
    reports: bool,
) -> std::result::Result<MediatorChannel, JailError> {
    let spawned = || -> Result<OwnedFd> {
        let (here, there) = fd_passing::seqpacket_pair()?;
        let program = std::process::id();
        let (pinned, watched) = allowed.into_parts();
        let (to_interceptor, ports) = ports.into_parts();
        let mut inherited = vec![there, PidFd::current()?.into(), to_interceptor];
        inherited.extend(pinned);
        daemonize::spawn_detached(inherited, |mut inherited| {
            daemonize::set_thread_name(c"peername-jail");
            let allowed = AllowedSockets::from_parts(inherited.split_off(3), watched);
            let Ok([channel, exit, to_interceptor]) = <[OwnedFd; 3]>::try_from(inherited) else {
                return 1;
            };
            match serve(
                channel,
                Program {
                    id: program,
                    exit: exit.into(),
                },
                (allowed, ports(to_interceptor), covers),
                reports,
            ) {
                Ok(()) => 0,
                Err(error) => {
                    try_write_line(&format!(
                        "peername: the program has no network any more: {error}"
                    ));
                    1
                }
            }
        })?;
        Ok(here)
    };
    spawned().map(MediatorChannel).map_err(JailError::Mediator)
}

impl MediatorChannel {
    /// Passes the listener of the program's filter, and waits until the mediator serves it.
    ///
    /// # Errors
    ///
    /// [`JailError::Mediator`]: it has exited.
    pub fn start(self, listener: &NotificationListener) -> std::result::Result<(), JailError> {
        let started = || -> Result<bool> {
            fd_passing::send_word(&self.0, LISTENER, Some(listener.as_fd()))?;
            Ok(fd_passing::receive_word(&self.0)?.is_some())
        };
        match started().map_err(JailError::Mediator)? {
            true => Ok(()),
            false => Err(JailError::MediatorExited),
        }
    }
}

/// The program's first process.
struct Program {
    id: u32,
    exit: PidFd,
}

fn serve(
    channel: OwnedFd,
    program: Program,
    (allowed, ports, covers): (AllowedSockets, ListenerPorts, Vec<Cover>),
    reports: bool,
) -> Result<()> {
    secrets::disable_core_dumps()?;
    let max_files = limits::raise_open_files().unwrap_or(0);
    let Some((_, Some(listener))) = fd_passing::receive_word(&channel)? else {
        // The jail could not be made, or the filter of another program has a mediator already.
        return Ok(());
    };
    let mut mediator = Mediator {
        calls: NotificationListener::from(listener),
        threads: ThreadCache::default(),
        namespace: UserNamespace::of_process(program.id)?,
        program: program.exit,
        directories: Directories::current()?,
        bound: BoundSockets::new(max_files),
        pending: PendingConnects::default(),
        allowed,
        ports,
        covers: WatchedCovers::new(covers),
        reports,
    };
    mediator.calls.enable_sync_wakeup();
    // What a call needs for a Unix socket is made effective for that call.
    set_effective(CapabilitySet::SYS_PTRACE)?;
    fd_passing::send_word(&channel, READY, None)?;
    drop(channel);
    mediator.run()
}

struct Mediator {
    calls: NotificationListener,
    threads: ThreadCache,
    program: PidFd,
    /// The program's user namespace.
    namespace: UserNamespace,
    directories: Directories,
    bound: BoundSockets,
    allowed: AllowedSockets,
    pending: PendingConnects,
    ports: ListenerPorts,
    covers: Option<WatchedCovers>,
    reports: bool,
}

impl Mediator {
    /// Serves until the program has exited.
    fn run(&mut self) -> Result<()> {
        loop {
            let replaced = self.covers.as_ref().map(AsFd::as_fd);
            let next_attempt = self.pending.next_attempt();
            match self.calls.wait(&self.program, replaced, next_attempt)? {
                WaitOutcome::Ready { call, other } => {
                    if other {
                        self.covers.iter().try_for_each(WatchedCovers::restore)?;
                    }
                    if call {
                        self.take()?;
                    }
                }
                WaitOutcome::Exited => return Ok(()),
            }
            self.pending.retry(&self.calls)?;
        }
    }

    fn take(&mut self) -> Result<()> {
        let Ok(call) = self.calls.receive() else {
            // Over before it was received.
            return Ok(());
        };
        let made = match call.mediated_call() {
            MediatedCall::Connect(argument) => self.connect(&call, argument),
            MediatedCall::Bind(argument) => self.bind(&call, argument),
            MediatedCall::ChangeProcess { process } => {
                self.judge_change(&call, process);
                return Ok(());
            }
        };
        match made {
            Ok(Made::Done) => self.calls.succeed(call.id),
            Ok(Made::Waits | Made::CallOver) => {}
            Err(CallError::Call(error)) => self.calls.fail(call.id, &error),
            Err(CallError::Mediator(error)) => return Err(error),
        }
        Ok(())
    }

    fn connect(
        &mut self,
        call: &Notification,
        argument: AddressArgument,
    ) -> std::result::Result<Made, CallError> {
        let Some(Copied { address, socket }) = self.copy(call, argument)? else {
            return Ok(Made::CallOver);
        };
        let Some(name) = UnixName::of(&address, &socket) else {
            let address = self.ports.redirect(&socket, address)?;
            return self.attempt(call, socket, Target::Address(address));
        };
        let Some(caller) = self.caller(call)? else {
            return Ok(Made::CallOver);
        };
        let target = match name {
            UnixName::Abstract => Target::Abstract { address, caller },
            UnixName::Path(path) => {
                let path = caller.own_path(&path);
                let Some(directories) = self.directories_of(call, &path)? else {
                    return Ok(Made::CallOver);
                };
                let file = self.directories.open(&caller, &directories, &path)?;
                let about = file.metadata()?;
                if !about.file_type().is_socket() {
                    return Err(Errno::CONNREFUSED.into());
                }
                if !self.bound.has(&about) && !self.allowed.has(&about) {
                    self.report(&path);
                    return Err(Errno::ACCESS.into());
                }
                Target::File { file, caller }
            }
        };
        self.attempt(call, socket, target)
    }

    /// Connects the socket, or begins to.
    fn attempt(
        &mut self,
        call: &Notification,
        socket: ForeignFd,
        target: Target,
    ) -> std::result::Result<Made, CallError> {
        // The caller, which waits, has the socket open: closing the duplicate before the answer takes no time.
        let mut connecting = Connecting::new(*call, socket.into_owned(), target);
        match connecting.attempt() {
            Some(outcome) => {
                if let Some((socket, address)) = connecting.refused(&outcome) {
                    self.ports.report_refused(socket, address);
                }
                Ok(outcome.map(|()| Made::Done)?)
            }
            None => {
                self.pending.add(connecting);
                Ok(Made::Waits)
            }
        }
    }

    fn bind(
        &mut self,
        call: &Notification,
        argument: AddressArgument,
    ) -> std::result::Result<Made, CallError> {
        let Some(Copied { address, socket }) = self.copy(call, argument)? else {
            return Ok(Made::CallOver);
        };
        let Some(UnixName::Path(path)) = UnixName::of(&address, &socket) else {
            return Ok(self.ports.bind(&socket, &address).map(|()| Made::Done)?);
        };
        let Some(caller) = self.caller(call)? else {
            return Ok(Made::CallOver);
        };
        let path = caller.own_path(&path);
        let Some(directories) = self.directories_of(call, &path)? else {
            return Ok(Made::CallOver);
        };
        let file = self
            .directories
            .bind(&caller, &directories, &socket, &path)?;
        if !file.is_some_and(|file| self.bound.insert(file)) {
            try_write_line(
                "peername: the program has too many Unix sockets: it can't connect to the next ones",
            );
        }
        Ok(Made::Done)
    }

    /// Copies the address, and the descriptor of the socket. `None` if the call is over.
    fn copy(
        &mut self,
        call: &Notification,
        argument: AddressArgument,
    ) -> std::result::Result<Option<Copied>, CallError> {
        let address = argument.read()?;
        let found = self
            .threads
            .descriptor(&self.calls, call, argument.socket)?;
        Ok(found.map(|(_, socket)| Copied { address, socket }))
    }

    /// The thread that makes the call; `None` if the call is over.
    fn caller(&self, call: &Notification) -> io::Result<Option<Caller>> {
        self.if_pending(call, Caller::of(call, &self.namespace))
    }

    /// The caller's directories; `None` if the call is over.
    fn directories_of(
        &self,
        call: &Notification,
        path: &Path,
    ) -> io::Result<Option<CallerDirectories>> {
        self.if_pending(call, CallerDirectories::of(call, path))
    }

    /// What was found by the caller's thread id; `None` if the call is over, and the id may be another thread's.
    fn if_pending<T>(&self, call: &Notification, found: io::Result<T>) -> io::Result<Option<T>> {
        match self.calls.is_pending(call.id) {
            true => found.map(Some),
            false => Ok(None),
        }
    }

    /// Lets the kernel make the call if the process belongs to the jail. Its arguments are in registers, where no other thread
    /// changes them. The process may exit meanwhile, and one outside get its number, if all others were given out in that time.
    fn judge_change(&self, call: &Notification, process: i32) {
        // A PID namespace below has processes of the jail only, with numbers of its own; others name no process.
        let is_own = match u32::try_from(process) {
            Ok(process) if !has_own_numbers(call.tid) => UserNamespace::of_process(process)
                .map(|namespace| namespace.is_within(&self.namespace)),
            _ => Ok(true),
        };
        match is_own {
            Ok(true) => self.calls.continue_syscall(call.id),
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => {
                self.calls.fail(call.id, &Errno::SRCH.into());
            }
            _ => self.calls.fail(call.id, &Errno::PERM.into()),
        }
    }

    fn report(&self, path: &Path) {
        if self.reports {
            try_write_line(&format!(
                "peername: refused: connecting to the Unix socket {path:?} (--allow-unix allows it)"
            ));
        }
    }
}

/// Whether the thread is in a PID namespace below this process's.
fn has_own_numbers(tid: u32) -> bool {
    let own = fs::read_link("/proc/self/ns/pid");
    let its = fs::read_link(format!("/proc/{tid}/ns/pid"));
    matches!((own, its), (Ok(own), Ok(its)) if own != its)
}

/// The arguments of a call, which the program can't change.
struct Copied {
    address: Vec<u8>,
    socket: ForeignFd,
}

/// What became of a call.
enum Made {
    /// It succeeds.
    Done,
    /// It is answered later.
    Waits,
    /// The caller has exited, or a signal has ended the call.
    CallOver,
}

const LISTENER: u64 = 1;
const READY: u64 = 2;

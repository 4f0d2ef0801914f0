//! Makes connect(2) and bind(2) for the program, and judges calls about other processes (seccomp_unotify(2)).
//!
//! ```text
//!   outside            │ jail                     │ program
//!                      │ mediator ◀── listener ── │ connect(fd, "/run/x")
//!                      │   opens /run/x as the program would, compares the file with the known ones,
//!                      │   connects a duplicate of fd to that file, answers
//! ```
//!
//! A socket that the program may connect to is known as a file, never by its path: what the program renames, links or mounts
//! changes nothing. No call is continued after its arguments were read from the program's memory: another thread could change
//! them, or put another socket at the descriptor.
//!
//! The mediator runs in the jail's first user namespace: it reaches no network outside, and the program, which is in the
//! second, has no access to it. If the mediator is killed, these calls fail with ENOSYS, and the program has no network. The
//! mediator exits with the program, as the interceptor does.
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
//! | [`refusals`] | the lines about sockets that are refused |

pub mod allowed;
mod bound;
mod call_error;
mod caller;
mod covers;
mod pending_connects;
pub mod ports;
pub mod refusals;

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use peername_sys::ipc::fd_passing;
use peername_sys::ipc::foreign_fd::ForeignFd;
use peername_sys::process::caps::set_effective;
use peername_sys::process::fork;
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
use call_error::{CallError, CallResult};
use caller::{Caller, CallerDirectories, IDLE_CAPABILITIES, RootDirectory, UnixName};
use covers::WatchedCovers;
use pending_connects::{Connecting, PendingConnects, Target};
use ports::ListenerPorts;
use refusals::RefusalLog;

/// The program's end of the channel to its mediator. The mediator exits if this is closed before a listener was sent.
#[derive(Debug)]
pub struct MediatorChannel(OwnedFd);

/// Starts the mediator in this process's namespaces, which are the jail's, before the program has its own.
pub fn spawn(config: MediatorConfig) -> Result<MediatorChannel, JailError> {
    fork_mediator(config)
        .map(MediatorChannel)
        .map_err(JailError::Mediator)
}

/// Forks the mediator, and returns the program's end of the channel. The mediator keeps only the descriptors that it is given,
/// so [`AllowedSockets`] and [`ListenerPorts`] are taken apart for the fork.
fn fork_mediator(config: MediatorConfig) -> Result<OwnedFd> {
    let (program_end, mediator_end) = fd_passing::seqpacket_pair()?;
    let program_id = std::process::id();
    let (pinned, watched) = config.allowed.into_parts();
    let (ports_fds, ports) = config.ports.into_parts();
    let mut kept = vec![mediator_end, PidFd::current()?.into()];
    let first_pinned = kept.len() + ports_fds.len();
    kept.extend(ports_fds);
    kept.extend(pinned);
    fork::spawn_detached(kept, |mut kept| {
        fork::set_thread_name(c"peername-jail");
        let allowed = AllowedSockets::from_parts(kept.split_off(first_pinned), watched);
        let ports = ports(kept.split_off(2));
        let (Ok([channel, exit]), Some(ports)) = (<[OwnedFd; 2]>::try_from(kept), ports) else {
            return 1;
        };
        let program = Program {
            id: program_id,
            exit: exit.into(),
        };
        let config = MediatorConfig {
            allowed,
            ports,
            ..config
        };
        match serve(channel, program, config) {
            Ok(()) => 0,
            Err(error) => {
                try_write_line(&format!(
                    "peername: the program has no network any more: {error}"
                ));
                1
            }
        }
    })?;
    Ok(program_end)
}

impl MediatorChannel {
    /// Passes the listener of the program's filter, and waits until the mediator serves it.
    ///
    /// # Errors
    ///
    /// [`JailError::Mediator`]: a call failed. [`JailError::MediatorExited`].
    pub fn start(self, listener: &NotificationListener) -> Result<(), JailError> {
        fd_passing::send_word(&self.0, LISTENER, Some(listener.as_fd()))
            .and_then(|()| fd_passing::receive_word(&self.0))
            .map_err(JailError::Mediator)?
            .map(drop)
            .ok_or(JailError::MediatorExited)
    }
}

/// The program's first process.
struct Program {
    id: u32,
    exit: PidFd,
}

/// The parameters of [`spawn`].
#[derive(Debug)]
pub struct MediatorConfig {
    /// The sockets of `--allow-unix`.
    pub allowed: AllowedSockets,
    /// The ports of the jail's listeners.
    pub ports: ListenerPorts,
    /// The files to cover again when they are replaced outside.
    pub covers: Vec<Cover>,
    /// Logs the sockets that are refused.
    pub refusals: RefusalLog,
}

fn serve(channel: OwnedFd, program: Program, config: MediatorConfig) -> Result<()> {
    secrets::disable_core_dumps()?;
    let max_files = limits::raise_open_files().unwrap_or(0);
    let Some((_, Some(listener))) = fd_passing::receive_word(&channel)? else {
        // The jail could not be made, or an inherited filter has a mediator already.
        return Ok(());
    };
    let mut mediator = Mediator {
        calls: NotificationListener::from(listener),
        threads: ThreadCache::new(max_files),
        namespace: UserNamespace::of_process(program.id)?,
        program: program.exit,
        root: RootDirectory::current()?,
        bound: BoundSockets::new(max_files),
        pending: PendingConnects::default(),
        allowed: config.allowed,
        ports: config.ports,
        covers: WatchedCovers::new(config.covers),
        refusals: config.refusals,
    };
    mediator.calls.enable_sync_wakeup();
    // The capabilities that a call for a Unix socket needs are made effective for that call.
    set_effective(IDLE_CAPABILITIES)?;
    fd_passing::send_word(&channel, READY, None)?;
    drop(channel);
    mediator.run()?;
    // The interceptor waits until its channel is closed, and sockets of the program may linger.
    drop(mediator.ports);
    mediator.refusals.finish();
    Ok(())
}

struct Mediator {
    calls: NotificationListener,
    threads: ThreadCache,
    program: PidFd,
    /// The program's user namespace.
    namespace: UserNamespace,
    root: RootDirectory,
    bound: BoundSockets,
    allowed: AllowedSockets,
    pending: PendingConnects,
    ports: ListenerPorts,
    covers: Option<WatchedCovers>,
    refusals: RefusalLog,
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
                        self.serve_call()?;
                    }
                }
                WaitOutcome::Exited => return Ok(()),
            }
            self.pending.retry(&self.calls, &mut self.ports)?;
        }
    }

    fn serve_call(&mut self) -> Result<()> {
        let Ok(call) = self.calls.receive() else {
            // The call was over before it was received.
            return Ok(());
        };
        let outcome = match call.mediated_call() {
            MediatedCall::Connect(argument) => self.connect(&call, argument),
            MediatedCall::Bind(argument) => self.bind(&call, argument),
            MediatedCall::ChangeProcess { process } => {
                self.judge_process_change(&call, process);
                return Ok(());
            }
        };
        match outcome {
            Ok(CallOutcome::Done) => self.calls.succeed(call.id),
            Ok(CallOutcome::Pending | CallOutcome::Over) => {}
            Err(CallError::Call(error)) => self.calls.fail(call.id, &error),
            Err(CallError::Mediator(error)) => return Err(error),
        }
        Ok(())
    }

    fn connect(
        &mut self,
        call: &Notification,
        argument: AddressArgument,
    ) -> CallResult<CallOutcome> {
        let Some(CopiedArguments { address, socket }) = self.copy_arguments(call, argument)? else {
            return Ok(CallOutcome::Over);
        };
        let Some(name) = UnixName::from_address(&address, &socket) else {
            let address = self.ports.redirect(&socket, address)?;
            return self.attempt(call, socket, Target::Address(address));
        };
        let Some(caller) = self.caller(call)? else {
            return Ok(CallOutcome::Over);
        };
        let target = match name {
            UnixName::Abstract => Target::Abstract { address, caller },
            UnixName::Path(path) => {
                let path = caller.resolve_proc_self(&path);
                let Some(directories) = self.directories_of(call, &path)? else {
                    return Ok(CallOutcome::Over);
                };
                let file = self.root.open(&caller, &directories, &path)?;
                let metadata = file.metadata()?;
                if !metadata.file_type().is_socket() {
                    return Err(Errno::CONNREFUSED.into());
                }
                if !self.bound.contains(&metadata) && !self.allowed.contains(&metadata) {
                    self.refusals.record(&path);
                    return Err(Errno::ACCESS.into());
                }
                Target::File { file, caller }
            }
        };
        self.attempt(call, socket, target)
    }

    /// Connects the socket. If the caller has to wait, further attempts follow.
    fn attempt(
        &mut self,
        call: &Notification,
        socket: ForeignFd,
        target: Target,
    ) -> CallResult<CallOutcome> {
        // Closing this duplicate takes no time: the caller waits for the answer, and has the socket open.
        let mut connecting = Connecting::new(*call, socket.into_owned(), target);
        let outcome = connecting.attempt();
        connecting.report_refusal(outcome.as_ref(), &mut self.ports);
        match outcome {
            Some(outcome) => Ok(outcome.map(|()| CallOutcome::Done)?),
            None => {
                self.pending.add(connecting);
                Ok(CallOutcome::Pending)
            }
        }
    }

    fn bind(&mut self, call: &Notification, argument: AddressArgument) -> CallResult<CallOutcome> {
        let Some(CopiedArguments { address, socket }) = self.copy_arguments(call, argument)? else {
            return Ok(CallOutcome::Over);
        };
        let Some(UnixName::Path(path)) = UnixName::from_address(&address, &socket) else {
            return Ok(self
                .ports
                .bind(&socket, &address)
                .map(|()| CallOutcome::Done)?);
        };
        let Some(caller) = self.caller(call)? else {
            return Ok(CallOutcome::Over);
        };
        let path = caller.resolve_proc_self(&path);
        let Some(directories) = self.directories_of(call, &path)? else {
            return Ok(CallOutcome::Over);
        };
        let file = self.root.bind(&caller, &directories, &socket, &path)?;
        if !file.is_some_and(|file| self.bound.insert(file)) {
            try_write_line(
                "peername: the program has too many Unix sockets: it can't connect to the next ones",
            );
        }
        Ok(CallOutcome::Done)
    }

    /// Copies the address, and duplicates the socket. `None` if the call is over.
    fn copy_arguments(
        &mut self,
        call: &Notification,
        argument: AddressArgument,
    ) -> CallResult<Option<CopiedArguments>> {
        let address = argument.read()?;
        let found = self
            .threads
            .descriptor(&self.calls, call, argument.socket)?;
        Ok(found.map(|(_, socket)| CopiedArguments { address, socket }))
    }

    /// The thread that makes the call; `None` if the call is over.
    fn caller(&self, call: &Notification) -> io::Result<Option<Caller>> {
        self.if_pending(call, Caller::read(call, &self.namespace))
    }

    /// The caller's directories; `None` if the call is over.
    fn directories_of(
        &self,
        call: &Notification,
        path: &Path,
    ) -> io::Result<Option<CallerDirectories>> {
        self.if_pending(call, CallerDirectories::open(call, path))
    }

    /// Returns what was found by the caller's thread id; `None` if the call is over, as another thread may have the id then.
    fn if_pending<T>(&self, call: &Notification, found: io::Result<T>) -> io::Result<Option<T>> {
        if self.calls.is_pending(call.id) {
            found.map(Some)
        } else {
            Ok(None)
        }
    }

    /// Lets the kernel make a call that changes a process, if the process belongs to the jail. The call's arguments are in
    /// registers, where no other thread can change them. The process may exit before the kernel makes the call, and a process
    /// outside may get its id, if all other ids were given out in that time.
    fn judge_process_change(&self, call: &Notification, process: i32) {
        // In a nested PID namespace, ids name processes of the jail only, or none.
        let is_jailed = match u32::try_from(process) {
            Ok(process) if !is_in_nested_pid_namespace(call.tid) => {
                UserNamespace::of_process(process)
                    .map(|namespace| namespace.is_within(&self.namespace))
            }
            _ => Ok(true),
        };
        match is_jailed {
            Ok(true) => self.calls.continue_syscall(call.id),
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => {
                self.calls.fail(call.id, &Errno::SRCH.into());
            }
            _ => self.calls.fail(call.id, &Errno::PERM.into()),
        }
    }
}

/// Whether the thread is in a PID namespace below this process's.
fn is_in_nested_pid_namespace(tid: u32) -> bool {
    let own = fs::read_link("/proc/self/ns/pid");
    let other = fs::read_link(format!("/proc/{tid}/ns/pid"));
    matches!((own, other), (Ok(own), Ok(other)) if own != other)
}

/// The arguments of a call, copied so that the program can't change them.
struct CopiedArguments {
    address: Vec<u8>,
    socket: ForeignFd,
}

/// The outcome of a call.
enum CallOutcome {
    /// The call succeeds.
    Done,
    /// The call is answered later: its caller has to wait.
    Pending,
    /// The caller has exited, or a signal has ended the call.
    Over,
}

/// To the mediator: the listener of the program's filter.
const LISTENER: u64 = 1;
/// To the program: the mediator serves the listener.
const READY: u64 = 2;

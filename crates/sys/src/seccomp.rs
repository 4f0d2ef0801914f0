//! System calls of another program, answered by this one (seccomp_unotify(2), since Linux 5.0).
//!
//! [`install`] puts a filter on the calling thread and on every program that it will become or start.
//! From then on their accept(2), accept4(2) and getpeername(2) wait until whoever holds the [`NotificationListener`]
//! answers, and getsockname(2) where that was [asked](Getsockname) for. Nothing of the program has to cooperate: static binaries and runtimes with system calls of
//! their own are caught as any other.

mod call;
mod deny_io_uring;
mod filter;
#[cfg(target_arch = "x86_64")]
mod i386;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::{NameCall, Result};

pub use call::{AddressBuffer, Endpoint, NotifiedCall};
pub use deny_io_uring::deny_io_uring;

/// The answering end. Once every copy of it is closed, the calls fail with ENOSYS. Readable when a call
/// waits; reports a hang-up once no process with the filter is left.
#[derive(Debug)]
pub struct NotificationListener(OwnedFd);

/// A call that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub struct Notification {
    /// Its number, never used again by this listener.
    pub id: u64,
    /// The thread, as this process's pid namespace counts; 0 if it does not know it.
    pub tid: u32,
    data: libc::seccomp_data,
}

/// What became of a descriptor that was to be the answer.
#[derive(Debug)]
pub enum AddFdOutcome {
    /// The call has returned with it.
    Installed,
    /// The call is over: a signal has interrupted it, or the thread has ended.
    CallOver,
    /// The program can't have it (EMFILE: too many open files); the call still waits.
    Rejected(io::Error),
}

/// Whether the program can still gain privileges by exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoNewPrivs {
    /// As before.
    Unchanged,
    /// Not any more: `no_new_privs` had to be set (prctl(2)).
    Set,
}

/// Who answers getsockname(2). A program may ask it often, so whoever has no other answer leaves it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Getsockname {
    /// Whoever holds the [`NotificationListener`].
    Notify,
    /// The kernel.
    Allow,
}

/// Calls that are not answered by the holder of the [`NotificationListener`], because a library in the program does what is to be
/// done. It makes them itself, and with arguments that only it knows: the kernel ignores the fifth and the sixth.
///
/// Only for the machine's own system calls: what a 32-bit program calls is always answered.
#[derive(Clone, Copy, Debug)]
pub struct Bypass {
    /// The arguments of accept4(2), getpeername(2) and getsockname(2) that go to the kernel.
    pub pass: [u64; 2],
    /// The arguments of a getpeername(2) that fails with `probe_errno`, by which a process without `pass` finds
    /// out that the filter is there.
    pub probe: [u64; 2],
    /// See `probe`.
    pub probe_errno: i32,
}

/// Puts the filter on this thread, for good.
///
/// Needs CAP_SYS_ADMIN or `no_new_privs`, which is set only if there is no other way. io_uring_setup(2)
/// answers ENOSYS from now on, because a connection accepted through a ring would be seen by nobody.
///
/// # Errors
///
/// EBUSY when a program above has a listener already, as container managers may: there can be one only.
/// EINVAL before Linux 5.0.
pub fn install(
    getsockname: Getsockname,
    bypass: Option<&Bypass>,
) -> Result<(NotificationListener, NoNewPrivs)> {
    let program = filter::program(getsockname, bypass);
    match install_once(&program) {
        Err(error) if error.is_permission() => {
            rustix::thread::set_no_new_privs(true).call("prctl(PR_SET_NO_NEW_PRIVS)")?;
            Ok((install_once(&program)?, NoNewPrivs::Set))
        }
        installed => Ok((installed?, NoNewPrivs::Unchanged)),
    }
}

fn install_once(program: &[libc::sock_filter]) -> Result<NotificationListener> {
    let fprog = libc::sock_fprog {
        len: u16::try_from(program.len())
            .map_err(io::Error::other)
            .call("seccomp(2)")?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the program is only read, and lives across the call with its true length.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const fprog,
        )
    };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor, closed on exec, for us alone.
        Ok(fd) if fd >= 0 => Ok(NotificationListener(unsafe { OwnedFd::from_raw_fd(fd) })),
        _ => Err(io::Error::last_os_error()).call("seccomp(SECCOMP_FILTER_FLAG_NEW_LISTENER)"),
    }
}

impl NotificationListener {
    /// Lets the kernel run us on the processor of the waiting thread, at once (since Linux 6.6); answers
    /// take half the time. Returns whether it can.
    pub fn enable_sync_wakeup(&self) -> bool {
        // The flags are the argument itself, not behind a pointer.
        // SAFETY: this command takes an integer and touches no memory.
        let rc = unsafe {
            libc::ioctl(
                self.0.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS,
                SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP,
            )
        };
        rc == 0
    }

    /// The next waiting call. Blocks if none waits, so ask when the listener is readable.
    ///
    /// # Errors
    ///
    /// ENOENT where the call was over before it could be told.
    pub fn receive(&self) -> io::Result<Notification> {
        // SAFETY: all-zero is a valid seccomp_notif, and what the kernel wants to see.
        let mut notification: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, &mut notification)?;
        Ok(Notification {
            id: notification.id,
            tid: notification.pid,
            data: notification.data,
        })
    }

    /// Whether this call still waits. What was read from the thread's memory, or found under its number,
    /// before the answer is yes was that thread's.
    pub fn is_pending(&self, mut id: u64) -> bool {
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &mut id)
            .is_ok()
    }

    /// Lets the call return 0. Nothing happens if it is over.
    pub fn succeed(&self, id: u64) {
        self.answer(id, 0, 0);
    }

    /// Lets the call fail with this error. Nothing happens if it is over.
    pub fn fail(&self, id: u64, error: &io::Error) {
        self.answer(id, -error.raw_os_error().unwrap_or(libc::EIO), 0);
    }

    /// Lets the kernel do what the call says, as if it had not been caught. Its arguments may be others by
    /// then (seccomp_unotify(2)), so this is no way to enforce anything against the program.
    pub fn continue_syscall(&self, id: u64) {
        self.answer(id, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE);
    }

    fn answer(&self, id: u64, error: i32, flags: u32) {
        let mut response = libc::seccomp_notif_resp {
            id,
            val: 0,
            error,
            flags,
        };
        // ENOENT: over. EINPROGRESS can't be: a listener has one reader.
        let _ = self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &mut response);
    }

    /// Lets the call return a new descriptor of the program for `fd`, in one step
    /// (SECCOMP_ADDFD_FLAG_SEND, since Linux 5.14).
    pub fn add_fd(&self, id: u64, fd: impl AsFd, close_on_exec: bool) -> AddFdOutcome {
        let mut addfd = libc::seccomp_notif_addfd {
            id,
            flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
            srcfd: fd.as_fd().as_raw_fd().cast_unsigned(),
            newfd: 0,
            newfd_flags: if close_on_exec {
                libc::O_CLOEXEC.cast_unsigned()
            } else {
                0
            },
        };
        match self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &mut addfd) {
            Ok(()) => AddFdOutcome::Installed,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => AddFdOutcome::CallOver,
            Err(error) => AddFdOutcome::Rejected(error),
        }
    }

    /// Another descriptor of it.
    pub fn try_clone(&self) -> Result<Self> {
        self.0.try_clone().map(Self).call("fcntl(F_DUPFD_CLOEXEC)")
    }

    fn ioctl<T>(&self, command: libc::Ioctl, argument: &mut T) -> io::Result<()> {
        // SAFETY: each command is used with the struct that its number was made from, which lives
        // across the call.
        let rc = unsafe { libc::ioctl(self.0.as_raw_fd(), command, &raw mut *argument) };
        if rc < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

impl AsFd for NotificationListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<NotificationListener> for OwnedFd {
    fn from(listener: NotificationListener) -> Self {
        listener.0
    }
}

/// From another process, by SCM_RIGHTS or fork(2).
impl From<OwnedFd> for NotificationListener {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

/// Lets `tracer` look into this process although it is no ancestor of it, where the kernel's Yama asks for
/// that (PR_SET_PTRACER; `kernel.yama.ptrace_scope` = 1). It holds across exec, not for children.
pub fn allow_ptrace_by(tracer: u32) {
    // SAFETY: the call takes integers and touches no memory. EINVAL without Yama, where nothing is needed.
    let _ = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(tracer)) };
}

/// From `linux/seccomp.h`.
const SECCOMP_USER_NOTIF_FLAG_CONTINUE: u32 = 1;
const SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP: libc::c_ulong = 1;

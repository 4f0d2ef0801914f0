//! The supervisor's end of a filter: receives pending calls and answers them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::bpf;
use crate::error::checked;
use crate::process::pidfd::PidFd;
use crate::{Errno, NameCall, Result};

/// The supervisor's end of a filter. Once every copy of it is closed, the intercepted calls fail with ENOSYS. Readable when a
/// call is pending; reports a hang-up once no process with the filter is left.
#[derive(Debug)]
pub struct NotificationListener(OwnedFd);

/// A pending system call.
#[derive(Clone, Copy, Debug)]
pub struct Notification {
    /// The id of the notification, never reused by this listener.
    pub id: u64,
    /// The id of the calling thread in this process's PID namespace; 0 if the thread is outside of it.
    pub tid: u32,
    pub(super) data: libc::seccomp_data,
}

/// Shared memory for one call, as the kernel writes it (`struct seccomp_notif`); zero while it has none.
pub type NotificationRecord = [AtomicU64; Notification::WORDS];

/// The result of returning a descriptor from a call.
#[derive(Debug)]
pub enum AddFdOutcome {
    /// The call has returned the descriptor.
    Installed,
    /// The call is over: a signal has interrupted it, or the thread has exited.
    CallOver,
    /// The program can't take another descriptor (EMFILE); the call is still pending.
    Rejected(io::Error),
}

/// Why [`NotificationListener::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// A call, the other descriptor, or both are ready; after the time limit or a signal, neither is.
    Ready {
        /// A call is pending.
        call: bool,
        /// The other descriptor is readable.
        other: bool,
    },
    /// The process has exited, or no process with the filter is left.
    Exited,
}

/// Whether no process with the filter of this listener is left.
pub fn has_no_process(listener: impl AsFd) -> bool {
    let now = Timespec::try_from(Duration::ZERO).ok();
    let mut fds = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
    let polled = poll(&mut fds, now.as_ref());
    let [listener] = fds;
    polled.is_ok() && listener.revents().contains(PollFlags::HUP)
}

/// Whether a descriptor is the listener of a filter.
pub fn is_listener(fd: impl AsFd) -> bool {
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    std::fs::read_link(link).is_ok_and(|file| file == Path::new("anon_inode:seccomp notify"))
}

/// The listener of a filter that was just installed with SECCOMP_FILTER_FLAG_NEW_LISTENER.
pub(super) fn listener_from(fd: libc::c_long) -> Result<NotificationListener> {
    let fd = RawFd::try_from(fd)
        .map_err(io::Error::other)
        .call("seccomp(2)")?;
    // SAFETY: the kernel has just made this descriptor, closed on exec, for us alone.
    Ok(NotificationListener(unsafe { OwnedFd::from_raw_fd(fd) }))
}

impl Notification {
    /// The number of words of a [`NotificationRecord`].
    pub const WORDS: usize = size_of::<libc::seccomp_notif>() / size_of::<u64>();

    /// The call in a record that [`NotificationListener::receive_into`] has filled, in this process or in one that has ended.
    /// `None` if it is empty.
    pub fn from_record(record: &NotificationRecord) -> Option<Self> {
        if Self::is_empty(record) {
            return None;
        }
        let words = record.each_ref().map(|word| word.load(Ordering::Relaxed));
        // SAFETY: both are 80 bytes of plain integers, for which all bits are valid.
        let call = unsafe { std::mem::transmute::<[u64; Self::WORDS], libc::seccomp_notif>(words) };
        Some(Self {
            id: call.id,
            tid: call.pid,
            data: call.data,
        })
    }

    /// Whether a record has no call.
    pub fn is_empty(record: &NotificationRecord) -> bool {
        let [_, _, abi, ..] = record;
        // The number of the call, and AUDIT_ARCH_*, which is never 0.
        abi.load(Ordering::Relaxed) == 0
    }

    /// Empties the record of a call that was answered, or is over. If this process is killed meanwhile, the record still has a
    /// call, which is then known to be over.
    pub fn clear(record: &NotificationRecord) {
        let [id, tid, abi, rest @ ..] = record;
        for word in [id, tid].into_iter().chain(rest) {
            word.store(0, Ordering::Relaxed);
        }
        // Stored last: a reader that sees 0 here sees an empty record.
        abi.store(0, Ordering::Release);
    }

    /// The fifth and sixth argument, which the intercepted calls do not have. `None` for a call of another ABI.
    pub fn spare_arguments(&self) -> Option<[u64; 2]> {
        let [_, _, _, _, fifth, sixth] = self.data.args;
        (self.data.arch == bpf::NATIVE).then_some([fifth, sixth])
    }
}

impl NotificationListener {
    /// Makes the kernel wake the supervisor synchronously on the CPU of the waiting thread (since Linux 6.6); answers
    /// take half the time. Returns whether the kernel supports it.
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

    /// Waits until a call is pending, `process` has exited or `other` is readable; at most for `limit`.
    pub fn wait(
        &self,
        process: &PidFd,
        other: Option<BorrowedFd<'_>>,
        limit: Option<Duration>,
    ) -> Result<WaitOutcome> {
        let limit = limit.map(Timespec::try_from).transpose();
        let limit = limit.map_err(io::Error::other).call("poll(2)")?;
        let mut polled = [
            PollFd::new(&self.0, PollFlags::IN),
            PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN),
            other.map_or_else(
                || PollFd::from_borrowed_fd(process.as_fd(), PollFlags::empty()),
                |other| PollFd::from_borrowed_fd(other, PollFlags::IN),
            ),
        ];
        match poll(&mut polled, limit.as_ref()) {
            Err(Errno::INTR) => {}
            ready => _ = ready.call("poll(2)")?,
        }
        let [calls, exit, other] = polled.map(|polled| polled.revents());
        // POLLERR of the listener means only that a signal has interrupted the poll (`seccomp_notify_poll` in the kernel's
        // `kernel/seccomp.c`).
        if !exit.is_empty() || calls.contains(PollFlags::HUP) {
            return Ok(WaitOutcome::Exited);
        }
        Ok(WaitOutcome::Ready {
            call: calls.contains(PollFlags::IN),
            other: other.contains(PollFlags::IN),
        })
    }

    /// Receives the next pending call. Blocks if there is none, so call it when the listener is readable.
    ///
    /// # Errors
    ///
    /// ENOENT where the call was over before it was received.
    pub fn receive(&self) -> io::Result<Notification> {
        // SAFETY: all-zero is a valid seccomp_notif, and what the kernel requires.
        let mut notification: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, &mut notification)?;
        Ok(Notification {
            id: notification.id,
            tid: notification.pid,
            data: notification.data,
        })
    }

    /// Receives the next pending call into an empty record. If the record is memory that outlives this process, no call is lost
    /// with the process: if it is killed within the system call, the call is in the record, or the next process receives it
    /// (`seccomp_notify_recv` in the kernel's `kernel/seccomp.c`). Blocks as [`NotificationListener::receive`] does.
    ///
    /// # Errors
    ///
    /// ENOENT where the call was over before it was received; EINVAL for a record that is not zero, since Linux 5.5; EINTR;
    /// EFAULT where the record can't be written: the kernel has taken the call back, but the record may have a part of it.
    pub fn receive_into(&self, record: &NotificationRecord) -> io::Result<Notification> {
        let start = record.as_ptr().cast_mut();
        // SAFETY: the record has the size of a seccomp_notif, and lies in atomic words, which may change behind a shared
        // reference.
        let rc = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, start) };
        checked(rc)?;
        Notification::from_record(record).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Whether this call is still pending. If it is, its thread id still names the caller, so that what was read from the
    /// thread's memory before was the caller's.
    pub fn is_pending(&self, mut id: u64) -> bool {
        self.retry_ioctl(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &mut id)
            .is_ok()
    }

    /// Makes the call return 0. No effect if it is over.
    pub fn succeed(&self, id: u64) {
        self.answer(id, 0, 0);
    }

    /// Makes the call fail with this error. No effect if it is over.
    pub fn fail(&self, id: u64, error: &io::Error) {
        self.answer(id, -error.raw_os_error().unwrap_or(libc::EIO), 0);
    }

    /// Lets the kernel execute the call as if it had not been intercepted (SECCOMP_USER_NOTIF_FLAG_CONTINUE). Arguments in
    /// memory may have changed by then (seccomp_unotify(2)), so no policy can rely on them.
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
        // ENOENT: the call is over. EINPROGRESS is impossible: a listener has one reader.
        let _ = self.retry_ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &mut response);
    }

    /// Duplicates `fd` into the program and makes the call return it, atomically
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
        loop {
            let Err(error) = self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &mut addfd) else {
                return AddFdOutcome::Installed;
            };
            return match error.raw_os_error() {
                // If the call is still pending, the signal came before the answer; else it came after it.
                Some(libc::EINTR) if self.is_pending(id) => continue,
                Some(libc::EINTR | libc::ENOENT) => AddFdOutcome::CallOver,
                _ => AddFdOutcome::Rejected(error),
            };
        }
    }

    /// Duplicates the descriptor.
    pub fn try_clone(&self) -> Result<Self> {
        self.0.try_clone().map(Self).call("fcntl(F_DUPFD_CLOEXEC)")
    }

    /// Repeats a command that a signal has interrupted before it did anything, as SIGSTOP and the freezer of cgroups can.
    fn retry_ioctl<T>(&self, command: libc::Ioctl, argument: &mut T) -> io::Result<()> {
        loop {
            match self.ioctl(command, argument) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    fn ioctl<T>(&self, command: libc::Ioctl, argument: &mut T) -> io::Result<()> {
        // SAFETY: each command is used with the struct that its number was made from, which lives
        // across the call.
        let rc = unsafe { libc::ioctl(self.0.as_raw_fd(), command, &raw mut *argument) };
        checked(rc).map(drop)
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

/// For a descriptor that came from another process, by SCM_RIGHTS or fork(2).
impl From<OwnedFd> for NotificationListener {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

/// From `linux/seccomp.h`.
const SECCOMP_USER_NOTIF_FLAG_CONTINUE: u32 = 1;
const SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP: libc::c_ulong = 1;

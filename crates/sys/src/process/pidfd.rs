//! Process descriptors (pidfd): references that stay valid when a process id is reused.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open, pidfd_send_signal,
};

pub use rustix::process::Signal;

use crate::event::readiness::register_readable;
use crate::event::wait_readable;
use crate::process::user::task_status::TaskStatus;
use crate::{NameCall, Result};

/// A process (pidfd_open(2), since Linux 5.3). The descriptor is readable once the process has exited.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the process with this id.
    ///
    /// # Errors
    ///
    /// ESRCH where there is none, EINVAL (before Linux 6.9) or ENOENT for a thread that is not its group's leader; ENOSYS before
    /// Linux 5.3.
    pub fn open(pid: u32) -> Result<Self> {
        Self::open_with(pid, PidfdFlags::empty())
    }

    /// Opens this process.
    pub fn current() -> Result<Self> {
        Self::open(std::process::id())
    }

    /// Opens the process that a thread belongs to. Check afterwards that the thread is still the same: it may have exited
    /// before this call and its id been reused.
    ///
    /// # Errors
    ///
    /// ESRCH where there is no such thread.
    pub fn of_thread(tid: u32) -> Result<Self> {
        match Self::open(tid) {
            Err(error) if error.errno() != Some(libc::ESRCH) => {
                Self::open(thread_group_leader(tid)?)
            }
            opened => opened,
        }
    }

    /// Verifies that /proc is that of this PID namespace, or is not needed. In the /proc of another namespace,
    /// [`PidFd::of_thread`] and [`thread_group_leader`] would find other processes. Without /proc, the kernel itself has to
    /// find the process of a thread (PIDFD_THREAD, since Linux 6.9).
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::Other`] where /proc is that of another PID namespace, ENOENT where it is needed and missing.
    pub fn check_proc() -> Result<()> {
        let own = std::process::id();
        let checked = match fs::read_link("/proc/self") {
            Ok(id) if id == Path::new(&own.to_string()) => Ok(()),
            Ok(_) => Err(io::Error::other("/proc is that of another PID namespace")),
            Err(_) if Self::open_with(own, PIDFD_THREAD).is_ok() => Ok(()),
            Err(error) => Err(error),
        };
        checked.call("readlink(/proc/self)")
    }

    fn open_with(pid: u32, flags: PidfdFlags) -> Result<Self> {
        let pid = Pid::from_raw(pid.cast_signed())
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
            .call("pidfd_open(2)")?;
        pidfd_open(pid, flags).map(Self).call("pidfd_open(2)")
    }

    /// Duplicates descriptor `number` of the process into this one, close-on-exec (pidfd_getfd(2), since Linux 5.6). Needs
    /// ptrace(2) permission over the process.
    ///
    /// # Errors
    ///
    /// EBADF where the descriptor is not open, EPERM without permission.
    pub fn get_fd(&self, number: RawFd) -> Result<OwnedFd> {
        // rustix panics for a negative number.
        if number < 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF)).call("pidfd_getfd(2)");
        }
        pidfd_getfd(&self.0, number, PidfdGetfdFlags::empty()).call("pidfd_getfd(2)")
    }

    /// Whether the process has exited.
    pub fn has_exited(&self) -> bool {
        wait_readable([self.as_fd()], Some(Duration::ZERO)).unwrap_or(false)
    }

    /// Duplicates the descriptor.
    pub fn try_clone(&self) -> Result<Self> {
        self.0.try_clone().map(Self).call("fcntl(F_DUPFD_CLOEXEC)")
    }

    /// Waits until the process has exited, in a tokio runtime.
    pub async fn wait_exit(self) -> Result<()> {
        let exit = register_readable(self.0)?;
        exit.readable().await.map(drop).call("epoll_wait(2)")
    }

    /// Sends a signal (pidfd_send_signal(2), since Linux 5.1).
    ///
    /// # Errors
    ///
    /// ESRCH once the process has exited; EPERM without permission (kill(2)).
    pub fn signal(&self, signal: Signal) -> Result<()> {
        pidfd_send_signal(&self.0, signal).call("pidfd_send_signal(2)")
    }
}

/// A thread, whose descriptor table may differ from its process's. The descriptor is readable once the thread has exited.
#[derive(Debug)]
pub struct ThreadFd {
    fd: PidFd,
    is_of_thread: bool,
}

impl ThreadFd {
    /// Opens the thread with this id (PIDFD_THREAD, since Linux 6.9); before that, its process.
    pub fn open(tid: u32) -> Result<Self> {
        let thread = PidFd::open_with(tid, PIDFD_THREAD);
        let is_of_thread = !matches!(&thread, Err(error) if error.errno() == Some(libc::EINVAL));
        let fd = match is_of_thread {
            true => thread?,
            false => PidFd::of_thread(tid)?,
        };
        Ok(Self { fd, is_of_thread })
    }

    /// Whether the descriptor refers to the thread itself; else it refers to the process.
    pub(crate) fn is_of_thread(&self) -> bool {
        self.is_of_thread
    }

    /// Whether the thread has exited; where the descriptor refers to the process, whether that has.
    pub(crate) fn has_exited(&self) -> bool {
        self.fd.has_exited()
    }

    /// As [`PidFd::get_fd`].
    ///
    /// # Errors
    ///
    /// As [`PidFd::get_fd`]; ESRCH once the thread has exited.
    pub fn get_fd(&self, number: RawFd) -> Result<OwnedFd> {
        self.fd.get_fd(number)
    }
}

impl AsFd for ThreadFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The live descendants of `pid`: children, their children, and so on; orphans were reparented and are not among them. Needs a
/// kernel with /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN), which distributions' kernels have.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut all = children(pid);
    let mut visited = 0;
    while let Some(&next) = all.get(visited) {
        visited += 1;
        all.extend(children(next));
    }
    all
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let mut pids = Vec::new();
    for task in tasks.flatten() {
        let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        pids.extend(
            list.split_ascii_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
    pids
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<PidFd> for OwnedFd {
    fn from(process: PidFd) -> Self {
        process.0
    }
}

/// For a descriptor that was inherited by fork(2).
impl From<OwnedFd> for PidFd {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

/// The id of the process that thread `tid` belongs to: its thread group (proc_pid_status(5), `Tgid`).
///
/// # Errors
///
/// ESRCH once the thread has exited.
pub fn thread_group_leader(tid: u32) -> Result<u32> {
    let status = TaskStatus::read(tid).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::from_raw_os_error(libc::ESRCH),
        _ => error,
    });
    Ok(status.call("read(/proc/TID/status)")?.process)
}

/// From `linux/pidfd.h`; rustix does not have it yet.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL.cast_unsigned());

#[cfg(test)]
mod tests {
    use std::io::pipe;
    use std::os::fd::AsRawFd;
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_is_resolved_to_its_process() {
        let (tid_sender, tid_receiver) = channel();
        let (end_sender, end_receiver) = channel::<()>();
        let thread = thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_pid().cast_unsigned();
            tid_sender.send(tid).unwrap();
            let _ = end_receiver.recv();
        });
        let tid = tid_receiver.recv().unwrap();
        assert_eq!(thread_group_leader(tid).unwrap(), std::process::id());
        let (reader, _writer) = pipe().unwrap();
        let number = reader.as_raw_fd();
        PidFd::of_thread(tid).unwrap().get_fd(number).unwrap();
        ThreadFd::open(tid).unwrap().get_fd(number).unwrap();
        drop(end_sender);
        thread.join().unwrap();
        // The join returns a moment before the thread is reaped.
        let error = (0..10_000).find_map(|_| {
            thread::sleep(Duration::from_millis(1));
            PidFd::of_thread(tid).err()
        });
        assert_eq!(error.unwrap().errno(), Some(libc::ESRCH));
        assert_eq!(
            thread_group_leader(tid).unwrap_err().errno(),
            Some(libc::ESRCH)
        );
    }

    #[test]
    fn a_signal_is_delivered_and_a_closed_descriptor_is_ebadf() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = PidFd::open(child.id()).unwrap();
        let error = process.get_fd(4095).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EBADF));
        let error = process.get_fd(-1).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EBADF));
        assert!(!process.has_exited());
        process.signal(Signal::KILL).unwrap();
        child.wait().unwrap();
        assert!(process.has_exited());
        assert_eq!(
            process.signal(Signal::KILL).unwrap_err().errno(),
            Some(libc::ESRCH)
        );
    }
}

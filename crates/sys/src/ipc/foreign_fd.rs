//! A descriptor of a file that another program's processes have open, too, closed in bounded time.
//!
//! Closing the last descriptor of a socket with SO_LINGER waits until its data is acknowledged (socket(7)), for as long as
//! the program has chosen. The wait ends at a signal, so a timer sends one.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

/// A descriptor that is closed within `CLOSE_LIMIT`, if it is a socket's.
///
/// For processes with a single thread, which then handles SIGALRM: the timer is the process's (setitimer(2)).
#[derive(Debug)]
pub struct ForeignFd(ManuallyDrop<OwnedFd>);

impl From<OwnedFd> for ForeignFd {
    fn from(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }
}

impl ForeignFd {
    /// Gives up the limit: for a socket that the program can't close meanwhile, or only to its own harm.
    #[must_use]
    pub fn into_owned(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once, as `this` is not dropped.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl AsFd for ForeignFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for ForeignFd {
    fn drop(&mut self) {
        // SAFETY: dropped once, here.
        within_close_limit(|| unsafe { ManuallyDrop::drop(&mut self.0) });
    }
}

/// Makes a system call that may close sockets of other programs, and limits the wait for each by [`CLOSE_LIMIT`]. The kernel
/// closes them on return from the call, when its result is known, so the timer's signal loses nothing that was received. A call
/// that it interrupts before is made again (SA_RESTART), or fails with EINTR (signal(7)).
pub(super) fn within_close_limit<T>(call: impl FnOnce() -> T) -> T {
    // Without a handler the timer must not start: SIGALRM would end the process.
    let is_handled = *IS_HANDLED.get_or_init(|| handle_alarm().is_ok());
    if is_handled {
        set_timer(CLOSE_LIMIT);
    }
    let result = call();
    if is_handled {
        set_timer(Duration::ZERO);
    }
    result
}

/// Handles SIGALRM by nothing, and unblocks it. Calls that it interrupts are made again (SA_RESTART), except close(2).
fn handle_alarm() -> io::Result<()> {
    extern "C" fn ignore(_: libc::c_int) {}
    // SAFETY: all-zero is a valid sigaction, the handler does nothing, and each call gets structs that live across it.
    let results = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        let mut alarm = std::mem::zeroed();
        libc::sigemptyset(&raw mut alarm);
        libc::sigaddset(&raw mut alarm, libc::SIGALRM);
        [
            libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut()),
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const alarm, ptr::null_mut()),
        ]
    };
    match results {
        [0, 0] => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends SIGALRM after this time, and again after each further such time; zero stops the timer.
fn set_timer(time: Duration) {
    let time = libc::timeval {
        tv_sec: 0,
        tv_usec: time.subsec_micros().into(),
    };
    let timer = libc::itimerval {
        it_interval: time,
        it_value: time,
    };
    // SAFETY: the kernel reads the struct, which lives across the call. It can't fail with valid times.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) };
}

static IS_HANDLED: OnceLock<bool> = OnceLock::new();
/// How long closing a socket may take: far longer than without SO_LINGER, and short for the clients that wait meanwhile.
const CLOSE_LIMIT: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use socket2::SockRef;

    use super::*;

    /// In a process of its own: the timer's signal would be handled by another thread of the tests.
    #[test]
    fn lingering_socket_is_closed_at_once() {
        // SAFETY: the child makes no use of locks that other threads may have held, but the allocator's, which fork(3) resets.
        match unsafe { libc::fork() } {
            // SAFETY: ends the child without the tests' handlers.
            0 => unsafe { libc::_exit(i32::from(time_to_close() > Duration::from_secs(5))) },
            child => {
                let mut status = -1;
                // SAFETY: the kernel writes one int.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert_eq!(status, 0);
            }
        }
    }

    /// Closes the last descriptor of a socket that lingers for 20 s, because its peer does not read.
    fn time_to_close() -> Duration {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_unread, _) = listener.accept().unwrap();
        writer.set_nonblocking(true).unwrap();
        let is_full = |error: io::Error| error.kind() == ErrorKind::WouldBlock;
        while !writer.write(&[0; 1 << 16]).is_err_and(is_full) {}
        writer.set_nonblocking(false).unwrap();
        let linger = Some(Duration::from_secs(20));
        SockRef::from(&writer).set_linger(linger).unwrap();
        let start = Instant::now();
        drop(ForeignFd::from(OwnedFd::from(writer)));
        start.elapsed()
    }
}

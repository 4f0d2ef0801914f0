//! Descriptors of files that another program has open, too, and closing them in bounded time.
//!
//! Closing the last descriptor of a socket with SO_LINGER waits until its data is acknowledged (socket(7)), for as long as
//! the program has chosen. A signal ends the wait, so a timer sends one.

use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::error::checked;
use crate::event::signals::{block, unblock};
use crate::process::fork::thread_count;

/// A descriptor, perhaps of a lingering socket, that is closed within `LIMIT`.
///
/// The limit needs a process with a single thread, and takes over its SIGALRM, because a process has one timer (setitimer(2)).
/// With several threads there is no limit.
#[derive(Debug)]
pub struct ForeignFd(ManuallyDrop<OwnedFd>);

impl From<OwnedFd> for ForeignFd {
    fn from(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }
}

impl ForeignFd {
    /// Gives up the limit. Use this for a socket that the program keeps open, because closing this descriptor does not wait
    /// then; or where the wait harms only the program.
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
        within_limit(|| unsafe { ManuallyDrop::drop(&mut self.0) });
    }
}

/// Makes a system call on a file that other programs have open, too, or a call that may close such a file. If the call waits,
/// it fails with EINTR after `LIMIT`. Even on a non-blocking socket, accept(2) and connect(2) wait if another process clears
/// O_NONBLOCK meanwhile. Nothing that was received is lost, because the kernel closes descriptors after the result of the call
/// is known.
///
/// Outside of such calls the signal is blocked: if it interrupted SECCOMP_IOCTL_NOTIF_ADDFD, the program's call would return 0.
/// The timer is not stopped after each call, which would cost several times as much as a change of the mask: the kernel stops
/// it while the signal is pending.
pub(crate) fn within_limit<T>(call: impl FnOnce() -> T) -> T {
    let has_timer = TIMER_RUNS.load(Ordering::Relaxed) || start_timer().is_ok();
    if has_timer {
        unblock(&[Signal::ALARM]);
    }
    let result = call();
    if has_timer {
        block(&[Signal::ALARM]);
    }
    result
}

/// Starts the timer, and blocks and handles its signal. If that fails, nothing has changed.
///
/// # Errors
///
/// `Unsupported` with several threads: another one would handle the signal. ENOMEM.
fn start_timer() -> io::Result<()> {
    if thread_count().map_err(|error| error.source)? != 1 {
        return Err(ErrorKind::Unsupported.into());
    }
    forget_timer_in_children()?;
    // Without a handler the signal would end the process.
    handle_signal()?;
    block(&[Signal::ALARM]);
    let period = libc::timeval {
        tv_sec: 0,
        tv_usec: LIMIT.subsec_micros().into(),
    };
    let timer = libc::itimerval {
        it_interval: period,
        it_value: period,
    };
    // SAFETY: the kernel reads the struct, which lives across the call. It can't fail with valid times.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) };
    TIMER_RUNS.store(true, Ordering::Relaxed);
    Ok(())
}

/// Makes a child start its own timer: it does not inherit this one (fork(2)).
fn forget_timer_in_children() -> io::Result<()> {
    extern "C" fn forget_timer() {
        TIMER_RUNS.store(false, Ordering::Relaxed);
    }
    static REGISTERED: OnceLock<libc::c_int> = OnceLock::new();
    fn register() -> libc::c_int {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::pthread_atfork(None, None, Some(forget_timer)) }
    }
    match *REGISTERED.get_or_init(register) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Handles SIGALRM without SA_RESTART, so that the call which it interrupts fails with EINTR.
fn handle_signal() -> io::Result<()> {
    extern "C" fn ignore(_: libc::c_int) {}
    // SAFETY: all-zero is a valid sigaction, the handler does nothing, and the struct lives across the call.
    let handled = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as *const () as usize;
        libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut())
    };
    checked(handled).map(drop)
}

/// Whether this process has the timer, which sends SIGALRM every [`LIMIT`].
static TIMER_RUNS: AtomicBool = AtomicBool::new(false);
/// How long a call may wait: far longer than a call takes that does not wait, and short for the clients that wait meanwhile.
const LIMIT: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use socket2::SockRef;

    use super::*;

    /// The timer starts at the first close, runs already at the second, and is not inherited by a child.
    #[test]
    fn lingering_sockets_are_closed_at_once() {
        let closes_at_once = || time_to_close() < Duration::from_secs(5);
        assert!(in_child(|| closes_at_once()
            && closes_at_once()
            && in_child(closes_at_once)));
    }

    /// The timer's signal would interrupt calls of the other threads.
    #[test]
    fn timer_does_not_start_beside_other_threads() {
        assert!(in_child(|| {
            let (_sender, receiver) = std::sync::mpsc::channel::<()>();
            std::thread::spawn(move || receiver.recv());
            let before = blocked_signals();
            within_limit(|| ());
            !TIMER_RUNS.load(Ordering::Relaxed) && blocked_signals() == before
        }));
    }

    fn blocked_signals() -> [bool; 64] {
        // SAFETY: the set is initialized by the call, and lives across it.
        unsafe {
            let mut blocked = std::mem::zeroed();
            libc::sigprocmask(libc::SIG_BLOCK, ptr::null(), &raw mut blocked);
            std::array::from_fn(|signal| {
                libc::sigismember(&raw const blocked, signal as i32 + 1) == 1
            })
        }
    }

    /// SECCOMP_IOCTL_NOTIF_ADDFD must not be interrupted, and an idle process not woken: the timer stops with the first signal,
    /// which stays pending.
    #[test]
    fn timer_interrupts_nothing_else_and_stops() {
        assert!(in_child(|| {
            time_to_close();
            let time = libc::timespec {
                tv_sec: 0,
                tv_nsec: 20 * libc::c_long::from(LIMIT.subsec_micros()) * 1000,
            };
            // SAFETY: all-zero is a valid itimerval; the kernel reads one struct and writes another, which live across the
            // calls.
            let (slept, timer) = unsafe {
                let mut timer: libc::itimerval = std::mem::zeroed();
                let slept = libc::nanosleep(&raw const time, ptr::null_mut());
                libc::getitimer(libc::ITIMER_REAL, &raw mut timer);
                (slept, timer)
            };
            slept == 0 && timer.it_value.tv_sec == 0 && timer.it_value.tv_usec == 0
        }));
    }

    /// Runs `work` in a process of its own: the timer's signal would be handled by another thread of the tests.
    fn in_child(work: impl FnOnce() -> bool) -> bool {
        // SAFETY: of the locks that other threads may have held, the child uses only the allocator's, which fork(3) resets.
        match unsafe { libc::fork() } {
            // SAFETY: ends the child without the tests' handlers.
            0 => unsafe { libc::_exit(i32::from(!work())) },
            child => {
                let mut status = -1;
                // SAFETY: the kernel writes one int.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                status == 0
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

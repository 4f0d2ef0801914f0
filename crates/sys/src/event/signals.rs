//! The signal mask of a thread, and signals as events (signalfd(2)), for code without a runtime.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::Signal;

use crate::error::checked;
use crate::{NameCall, Result};

/// Signals that are read from a descriptor instead of being handled. The descriptor is readable while one is pending.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// Blocks these signals in the calling thread, which must be the only one, and opens the descriptor. Processes that the
    /// thread forks inherit the mask.
    pub fn open(signals: &[Signal]) -> Result<Self> {
        block(signals);
        let set = set_of(signals);
        // SAFETY: the kernel reads the set, which lives across the call.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
        let fd = checked(fd).call("signalfd(2)")?;
        // SAFETY: the kernel has just made this descriptor for us alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Reads the next pending signal; `None` if there is none.
    pub fn next(&self) -> Option<Signal> {
        let mut info = [MaybeUninit::uninit(); size_of::<libc::signalfd_siginfo>()];
        let (info, _) = rustix::io::read(&self.0, &mut info[..]).ok()?;
        // `ssi_signo` is the first member.
        let number = info.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))?;
        Signal::from_named_raw(number.cast_signed())
    }
}

/// Blocks these signals in the calling thread (sigprocmask(2)): those that come stay pending. Threads that it starts and processes
/// that it forks inherit the mask, and execve(2) preserves it.
pub fn block(signals: &[Signal]) {
    change_mask(libc::SIG_BLOCK, signals);
}

/// Unblocks these signals in the calling thread, and delivers those that are pending.
pub fn unblock(signals: &[Signal]) {
    change_mask(libc::SIG_UNBLOCK, signals);
}

/// It can't fail: `how` is valid.
fn change_mask(how: libc::c_int, signals: &[Signal]) {
    let set = set_of(signals);
    // SAFETY: the kernel reads the set, which lives across the call.
    unsafe { libc::sigprocmask(how, &raw const set, std::ptr::null_mut()) };
}

fn set_of(signals: &[Signal]) -> libc::sigset_t {
    // SAFETY: a sigset_t has no invalid bits, and lives across the calls.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, signal.as_raw());
        }
        set
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

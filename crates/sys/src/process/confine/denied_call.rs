//! Names the system call that the process made although its filter denies it, before the process is killed.
//!
//! SECCOMP_RET_KILL_PROCESS would leave no trace in the log. SECCOMP_RET_TRAP sends SIGSYS; the handler names the call on
//! standard error and lets the signal kill the process.

use std::ptr;

use syscalls::Sysno;

use crate::error::checked;
use crate::{NameCall, Result};

/// Installs the handler of SIGSYS.
pub(super) fn install_handler() -> Result<()> {
    // SAFETY: all-zero is a valid sigaction. The handler has the type that SA_SIGINFO requires, and makes async-signal-safe
    // calls only.
    let rc = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = report as *const () as usize;
        // The kernel resets the action to the default, so that the next SIGSYS kills the process, even if a call of the handler
        // itself causes it.
        action.sa_flags =
            libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND | libc::SA_NODEFER;
        libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut())
    };
    checked(rc).map(drop).call("sigaction(SIGSYS)")
}

extern "C" fn report(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo_t to a handler with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    if code == SYS_SECCOMP {
        // SAFETY: with this code, the kernel has filled in the fields of SIGSYS.
        let number = unsafe { (*info.cast::<SigSys>()).number };
        let mut line = Line::default();
        line.push(b"peername: killed: it made the system call ");
        let name = usize::try_from(number).ok().and_then(Sysno::new);
        line.push(name.map_or("(unknown)", |name| name.name()).as_bytes());
        line.push(b" (");
        line.push_number(number.unsigned_abs());
        line.push(b"), which it never needs after its start, or not with these arguments. This is an attack or a bug: ");
        line.push(b"please report it. --no-sandbox runs it without this filter\n");
        line.write();
    }
    // SAFETY: all three calls take integers only. The signal's action is the default by now.
    unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            libc::getpid(),
            libc::syscall(libc::SYS_gettid),
            libc::SIGSYS,
        );
        libc::_exit(128 + libc::SIGSYS);
    }
}

/// A line in a buffer on the stack: an allocation in a signal handler may deadlock.
struct Line {
    bytes: [u8; LINE_LEN],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            bytes: [0; LINE_LEN],
            len: 0,
        }
    }
}

impl Line {
    /// Appends what fits.
    fn push(&mut self, text: &[u8]) {
        let free = self.bytes.get_mut(self.len..).unwrap_or_default();
        for (to, from) in free.iter_mut().zip(text) {
            *to = *from;
            self.len += 1;
        }
    }

    fn push_number(&mut self, number: u32) {
        if number >= 10 {
            self.push_number(number / 10);
        }
        self.push(&[b'0' + (number % 10) as u8]);
    }

    fn write(&self) {
        // SAFETY: the first `len` bytes are part of the buffer. An error has nowhere to be reported.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, self.bytes.as_ptr().cast(), self.len) };
    }
}

/// `siginfo_t` of SIGSYS (sigaction(2)), on 64-bit systems.
#[repr(C)]
struct SigSys {
    signal: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    address: *const libc::c_void,
    number: libc::c_int,
    architecture: libc::c_uint,
}

/// Longer than the line with any name and number.
const LINE_LEN: usize = 320;
/// From `asm-generic/siginfo.h`.
const SYS_SECCOMP: libc::c_int = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_holds_what_fits() {
        let mut line = Line::default();
        line.push(b"n=");
        line.push_number(1059);
        assert_eq!(&line.bytes[..line.len], b"n=1059");
        line.push(&[b'x'; 1000]);
        assert_eq!(line.len, line.bytes.len());
    }
}

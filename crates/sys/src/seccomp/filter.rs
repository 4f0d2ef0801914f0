//! The filter: selects the calls that are intercepted.
//!
//! A 64-bit kernel also runs programs of other ABIs, whose calls have other numbers. Calls of an unknown ABI fail, so that none
//! is made unsupervised.

use libc::{BPF_JEQ, SECCOMP_RET_ALLOW, SECCOMP_RET_USER_NOTIF, sock_filter};

use super::bpf::{
    ARCHITECTURE, FAIL_ENOSYS, NATIVE, NUMBER, argument, deny_x32, dispatch, failure, if_equal,
    jump, load, ret,
};
#[cfg(target_arch = "x86_64")]
use super::{bpf::decide_by, i386};

/// Whether getsockname(2) is intercepted. Programs may call it often, so intercept it only if needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Getsockname {
    /// The holder of the [`NotificationListener`](super::NotificationListener) answers.
    Notify,
    /// The kernel answers.
    Allow,
}

/// The marks of calls that bypass the supervisor. A preloaded library makes such calls, because it does the supervisor's work
/// in the program itself. The marks are secrets in the fifth and the sixth argument, which the kernel ignores.
///
/// Only for native system calls: those of 32-bit programs are always intercepted.
#[derive(Clone, Copy, Debug)]
pub struct Bypass {
    /// With these arguments, accept4(2), listen(2), getpeername(2) and getsockname(2) go to the kernel.
    pub pass: [u64; 2],
    /// With these arguments, getpeername(2) fails with `probe_errno`: a process that does not know `pass` detects the filter
    /// by that.
    pub probe: [u64; 2],
    /// The error number for `probe`.
    pub probe_errno: i32,
}

/// The program, for seccomp(2).
pub(super) fn program(getsockname: Getsockname, bypass: Option<&Bypass>) -> Vec<sock_filter> {
    let mut program = vec![load(ARCHITECTURE)];
    program.extend(if_equal(NATIVE, &native_filter(getsockname, bypass)));
    #[cfg(target_arch = "x86_64")]
    program.extend(if_equal(i386::AUDIT_ARCH, &i386_filter(getsockname)));
    program.push(ret(FAIL_ENOSYS));
    program
}

fn native_filter(getsockname: Getsockname, bypass: Option<&Bypass>) -> Vec<sock_filter> {
    let (pass, probe) = match bypass {
        Some(bypass) => (
            if_arguments(bypass.pass, SECCOMP_RET_ALLOW),
            if_arguments(bypass.probe, failure(bypass.probe_errno)),
        ),
        None => (Vec::new(), Vec::new()),
    };
    let pass_or_notify = [&pass[..], &[ret(NOTIFY)]].concat();
    let mut filter = vec![load(NUMBER)];
    filter.extend(deny_x32());
    filter.extend(if_equal(libc::SYS_accept4 as u32, &pass_or_notify));
    filter.extend(if_equal(
        libc::SYS_getpeername as u32,
        &[&pass[..], &probe, &[ret(NOTIFY)]].concat(),
    ));
    filter.extend(if_equal(libc::SYS_listen as u32, &pass_or_notify));
    if getsockname == Getsockname::Notify {
        filter.extend(if_equal(libc::SYS_getsockname as u32, &pass_or_notify));
    }
    filter.extend(dispatch(&[
        (libc::SYS_accept as u32, NOTIFY),
        (libc::SYS_io_uring_setup as u32, FAIL_ENOSYS),
    ]));
    filter.push(ret(SECCOMP_RET_ALLOW));
    filter
}

/// In the 32-bit ABI, socketcall(2) multiplexes the socket calls by its first argument.
#[cfg(target_arch = "x86_64")]
fn i386_filter(getsockname: Getsockname) -> Vec<sock_filter> {
    let multiplexed = [
        (i386::SYS_LISTEN, NOTIFY),
        (i386::SYS_ACCEPT, NOTIFY),
        (i386::SYS_GETPEERNAME, NOTIFY),
        (i386::SYS_ACCEPT4, NOTIFY),
        (i386::SYS_GETSOCKNAME, getsockname.action()),
    ];
    let multiplexed = decide_by(argument(0), &multiplexed, SECCOMP_RET_ALLOW);
    let mut filter = vec![load(NUMBER)];
    filter.extend(dispatch(&[
        (i386::LISTEN, NOTIFY),
        (i386::ACCEPT4, NOTIFY),
        (i386::GETPEERNAME, NOTIFY),
        (i386::GETSOCKNAME, getsockname.action()),
        (i386::IO_URING_SETUP, FAIL_ENOSYS),
    ]));
    filter.extend(if_equal(i386::SOCKETCALL, &multiplexed));
    filter.push(ret(SECCOMP_RET_ALLOW));
    filter
}

#[cfg(target_arch = "x86_64")]
impl Getsockname {
    fn action(self) -> u32 {
        match self {
            Self::Notify => NOTIFY,
            Self::Allow => SECCOMP_RET_ALLOW,
        }
    }
}

/// Returns `action` for a call with these fifth and sixth arguments; else continues.
fn if_arguments(pair: [u64; 2], action: u32) -> Vec<sock_filter> {
    // The lower half is first in memory.
    let halves = pair.map(|argument| [argument as u32, (argument >> 32) as u32]);
    let halves = halves.as_flattened();
    let mut program = Vec::new();
    for (index, &half) in halves.iter().enumerate() {
        // Another value skips two instructions for each further half, and the return.
        let rest = 2 * (halves.len() - 1 - index) + 1;
        let offset = argument(4) + index * size_of::<u32>();
        program.extend([load(offset), jump(BPF_JEQ, half, 0, rest as u8)]);
    }
    program.push(ret(action));
    program
}

const NOTIFY: u32 = SECCOMP_RET_USER_NOTIF;

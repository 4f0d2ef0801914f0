//! The filter: selects the calls that are intercepted.
//!
//! A 64-bit kernel runs programs of other ABIs too, with other call numbers; calls of an unknown ABI fail rather than go
//! unsupervised.

use libc::{
    BPF_JEQ, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_USER_NOTIF, seccomp_data,
    sock_filter,
};

#[cfg(target_arch = "x86_64")]
use super::bpf::FIRST_ARGUMENT;
use super::bpf::{
    ARCHITECTURE, FAIL_ENOSYS, NATIVE, NUMBER, deny_x32, if_equal, jump, load, ret, returns,
};
#[cfg(target_arch = "x86_64")]
use super::i386;

/// Whether getsockname(2) is intercepted. Programs may call it often, so intercept it only if needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Getsockname {
    /// The holder of the [`NotificationListener`](super::NotificationListener) answers.
    Notify,
    /// The kernel answers.
    Allow,
}

/// Calls that bypass the supervisor: those of a preloaded library in the program, which does the supervisor's work itself.
/// It marks its calls by secrets in the fifth and the sixth argument, which the kernel ignores.
///
/// Only for native system calls: those of 32-bit programs are always intercepted.
#[derive(Clone, Copy, Debug)]
pub struct Bypass {
    /// Arguments by which accept4(2), listen(2), getpeername(2) and getsockname(2) go to the kernel.
    pub pass: [u64; 2],
    /// Arguments by which getpeername(2) fails with `probe_errno`, so that a process without `pass` detects the
    /// filter.
    pub probe: [u64; 2],
    /// See `probe`.
    pub probe_errno: i32,
}

/// The program, for seccomp(2).
pub(super) fn program(getsockname: Getsockname, bypass: Option<&Bypass>) -> Vec<sock_filter> {
    let mut program = vec![load(ARCHITECTURE)];
    program.extend(if_equal(NATIVE, &native(getsockname, bypass)));
    #[cfg(target_arch = "x86_64")]
    program.extend(if_equal(i386::AUDIT_ARCH, &program_i386(getsockname)));
    program.push(ret(FAIL_ENOSYS));
    program
}

fn native(getsockname: Getsockname, bypass: Option<&Bypass>) -> Vec<sock_filter> {
    let mut calls = vec![load(NUMBER)];
    calls.extend(deny_x32());
    let passes = || bypass.map_or_else(Vec::new, |by| if_arguments(by.pass, SECCOMP_RET_ALLOW));
    let probe = |by: &Bypass| if_arguments(by.probe, failure(by.probe_errno));
    let probes = bypass.map_or_else(Vec::new, probe);
    let notify = || vec![ret(NOTIFY)];
    calls.extend(if_equal(
        libc::SYS_accept4 as u32,
        &[passes(), notify()].concat(),
    ));
    calls.extend(if_equal(
        libc::SYS_getpeername as u32,
        &[passes(), probes, notify()].concat(),
    ));
    calls.extend(if_equal(
        libc::SYS_listen as u32,
        &[passes(), notify()].concat(),
    ));
    if getsockname == Getsockname::Notify {
        calls.extend(if_equal(
            libc::SYS_getsockname as u32,
            &[passes(), notify()].concat(),
        ));
    }
    calls.extend(returns(&[
        (libc::SYS_accept as u32, NOTIFY),
        (libc::SYS_io_uring_setup as u32, FAIL_ENOSYS),
    ]));
    calls.push(ret(SECCOMP_RET_ALLOW));
    calls
}

/// In the 32-bit ABI, socketcall(2) multiplexes the socket calls by its first argument.
#[cfg(target_arch = "x86_64")]
fn program_i386(getsockname: Getsockname) -> Vec<sock_filter> {
    let mut which = vec![load(FIRST_ARGUMENT)];
    which.extend(returns(
        &i386::SOCKETCALL_NOTIFIED.map(|call| (call, NOTIFY)),
    ));
    which.extend(returns(&[(i386::SYS_GETSOCKNAME, getsockname.action())]));
    which.push(ret(SECCOMP_RET_ALLOW));
    let mut calls = vec![load(NUMBER)];
    calls.extend(returns(&[
        (i386::LISTEN, NOTIFY),
        (i386::ACCEPT4, NOTIFY),
        (i386::GETPEERNAME, NOTIFY),
        (i386::GETSOCKNAME, getsockname.action()),
        (i386::IO_URING_SETUP, FAIL_ENOSYS),
    ]));
    calls.extend(if_equal(i386::SOCKETCALL, &which));
    calls.push(ret(SECCOMP_RET_ALLOW));
    calls
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
    let words = pair.map(|word| [word as u32, (word >> 32) as u32]);
    let words = words.as_flattened();
    let compare = |(at, &word): (usize, &u32)| {
        // Instructions to skip: two for each further word, and the return.
        let rest = 2 * (words.len() - 1 - at) + 1;
        let offset = FIFTH_ARGUMENT + at * size_of::<u32>();
        [load(offset), jump(BPF_JEQ, word, 0, rest as u8)]
    };
    let mut all: Vec<_> = words.iter().enumerate().flat_map(compare).collect();
    all.push(ret(action));
    all
}

fn failure(errno: i32) -> u32 {
    SECCOMP_RET_ERRNO | errno.cast_unsigned()
}

/// Little-endian, as all supported machines: the lower half first. The sixth follows.
const FIFTH_ARGUMENT: usize = std::mem::offset_of!(seccomp_data, args) + 4 * size_of::<u64>();

const NOTIFY: u32 = SECCOMP_RET_USER_NOTIF;

//! The filter: which calls wait for an answer.
//!
//! Two dozen instructions of classic BPF, put together by three functions, because a compiler for them
//! would be the larger thing to trust. A 64-bit kernel serves programs of other kinds too, whose calls
//! have other numbers; a kind that we do not know fails at once rather than go unsupervised.

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JUMP, BPF_K, BPF_LD, BPF_RET, BPF_STMT, BPF_W,
    SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_USER_NOTIF, seccomp_data, sock_filter,
};

#[cfg(target_arch = "x86_64")]
use super::i386;
use super::{Bypass, Getsockname};

/// The program, for seccomp(2).
pub(super) fn program(getsockname: Getsockname, bypass: Option<&Bypass>) -> Vec<sock_filter> {
    let mut program = vec![load(ARCHITECTURE)];
    program.extend(of(NATIVE, &native(getsockname, bypass)));
    #[cfg(target_arch = "x86_64")]
    program.extend(of(i386::AUDIT_ARCH, &program_i386(getsockname)));
    program.push(answer(NO_SUCH_CALL));
    program
}

fn native(getsockname: Getsockname, bypass: Option<&Bypass>) -> Vec<sock_filter> {
    let mut calls = vec![load(NUMBER)];
    // x32 has numbers of its own behind this one.
    #[cfg(target_arch = "x86_64")]
    calls.extend([jump(BPF_JGE, X32, 0, 1), answer(NO_SUCH_CALL)]);
    let passes = || bypass.map_or_else(Vec::new, |by| with(by.pass, SECCOMP_RET_ALLOW));
    let probe = |by: &Bypass| with(by.probe, failure(by.probe_errno));
    let probes = bypass.map_or_else(Vec::new, probe);
    let ask = || vec![answer(ASK)];
    calls.extend(of(libc::SYS_accept4 as u32, &[passes(), ask()].concat()));
    calls.extend(of(
        libc::SYS_getpeername as u32,
        &[passes(), probes, ask()].concat(),
    ));
    if getsockname == Getsockname::Notify {
        calls.extend(of(
            libc::SYS_getsockname as u32,
            &[passes(), ask()].concat(),
        ));
    }
    calls.extend(answers(&[
        (libc::SYS_accept as u32, ASK),
        (libc::SYS_io_uring_setup as u32, NO_SUCH_CALL),
    ]));
    calls.push(answer(SECCOMP_RET_ALLOW));
    calls
}

/// There socketcall(2) stands for all calls about sockets, and its first argument says for which.
#[cfg(target_arch = "x86_64")]
fn program_i386(getsockname: Getsockname) -> Vec<sock_filter> {
    let mut which = vec![load(FIRST_ARGUMENT)];
    which.extend(answers(&i386::OF_SOCKETCALL.map(|call| (call, ASK))));
    which.extend(answers(&[(i386::SYS_GETSOCKNAME, getsockname.action())]));
    which.push(answer(SECCOMP_RET_ALLOW));
    let mut calls = vec![load(NUMBER)];
    calls.extend(answers(&[
        (i386::ACCEPT4, ASK),
        (i386::GETPEERNAME, ASK),
        (i386::GETSOCKNAME, getsockname.action()),
        (i386::IO_URING_SETUP, NO_SUCH_CALL),
    ]));
    calls.extend(of(i386::SOCKETCALL, &which));
    calls.push(answer(SECCOMP_RET_ALLOW));
    calls
}

impl Getsockname {
    fn action(self) -> u32 {
        match self {
            Self::Notify => ASK,
            Self::Allow => SECCOMP_RET_ALLOW,
        }
    }
}

/// `action` for a call whose fifth and sixth argument are these; else goes on behind it.
fn with(pair: [u64; 2], action: u32) -> Vec<sock_filter> {
    let words = pair.map(|word| [word as u32, (word >> 32) as u32]);
    let words = words.as_flattened();
    let compare = |(at, &word): (usize, &u32)| {
        // What is left: two instructions for each further word, and the answer.
        let rest = 2 * (words.len() - 1 - at) + 1;
        let offset = FIFTH_ARGUMENT + at * size_of::<u32>();
        [load(offset), jump(BPF_JEQ, word, 0, rest as u8)]
    };
    let mut all: Vec<_> = words.iter().enumerate().flat_map(compare).collect();
    all.push(answer(action));
    all
}

fn failure(errno: i32) -> u32 {
    SECCOMP_RET_ERRNO | errno.cast_unsigned()
}

/// `body`, which answers in any case, for what was loaded being `value`; else goes on behind it.
fn of(value: u32, body: &[sock_filter]) -> Vec<sock_filter> {
    // Every body is shorter than a jump's 255.
    let mut all = vec![jump(BPF_JEQ, value, 0, body.len() as u8)];
    all.extend_from_slice(body);
    all
}

fn answers(table: &[(u32, u32)]) -> impl Iterator<Item = sock_filter> {
    let one = |&(value, action): &(u32, u32)| [jump(BPF_JEQ, value, 0, 1), answer(action)];
    table.iter().flat_map(one)
}

fn load(offset: usize) -> sock_filter {
    // SAFETY: BPF_STMT only fills in a struct.
    unsafe { BPF_STMT((BPF_LD | BPF_W | BPF_ABS) as u16, offset as u32) }
}

fn answer(action: u32) -> sock_filter {
    // SAFETY: BPF_STMT only fills in a struct.
    unsafe { BPF_STMT((BPF_RET | BPF_K) as u16, action) }
}

fn jump(comparison: u32, value: u32, if_so: u8, if_not: u8) -> sock_filter {
    // SAFETY: BPF_JUMP only fills in a struct.
    unsafe { BPF_JUMP((BPF_JMP | comparison | BPF_K) as u16, value, if_so, if_not) }
}

const ARCHITECTURE: usize = std::mem::offset_of!(seccomp_data, arch);
const NUMBER: usize = std::mem::offset_of!(seccomp_data, nr);
/// The lower half of the argument, on a little-endian machine; socketcall's is an int.
#[cfg(target_arch = "x86_64")]
const FIRST_ARGUMENT: usize = std::mem::offset_of!(seccomp_data, args);

/// Little-endian, as all that are known here: the lower half first. The sixth is behind it.
const FIFTH_ARGUMENT: usize = std::mem::offset_of!(seccomp_data, args) + 4 * size_of::<u64>();

const ASK: u32 = SECCOMP_RET_USER_NOTIF;
const NO_SUCH_CALL: u32 = SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();

/// From `linux/audit.h`: the ELF machine number, with bits for 64-bit and little-endian.
#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;
#[cfg(target_arch = "riscv64")]
const NATIVE: u32 = 0xc000_00f3;
/// `__X32_SYSCALL_BIT` of `asm/unistd.h`.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;

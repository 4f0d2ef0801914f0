//! Filters of system calls in classic BPF (seccomp(2)): a few functions assemble them, because a compiler would be more code to
//! trust.

use std::ffi::{c_long, c_ulong};
use std::io;

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W,
    SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, seccomp_data, sock_filter,
};

use crate::error::checked;

/// Installs a filter on this thread and what it executes, irrevocably. Returns what the kernel returns for `flags`
/// (SECCOMP_FILTER_FLAG_*): 0, or a descriptor.
///
/// # Errors
///
/// EACCES with neither CAP_SYS_ADMIN over the thread's user namespace nor `no_new_privs`.
pub(super) fn install(program: &[sock_filter], flags: c_ulong) -> io::Result<c_long> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the program, which lives across the call with its true length, and does not write to it.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    checked(rc)
}

/// Denies calls of the x32 ABI, whose numbers have a bit of their own. The accumulator has the number.
pub(super) fn deny_x32() -> Vec<sock_filter> {
    #[cfg(target_arch = "x86_64")]
    return vec![jump(libc::BPF_JGE, X32, 0, 1), ret(FAIL_ENOSYS)];
    #[cfg(not(target_arch = "x86_64"))]
    return Vec::new();
}

/// Runs `body` if the accumulator equals `value`. Continues after it if it has not returned.
pub(super) fn if_equal(value: u32, body: &[sock_filter]) -> Vec<sock_filter> {
    // Skipping the body takes an unconditional jump, whose distance has 32 bits: that of a conditional one has 8.
    let mut program = vec![jump(BPF_JEQ, value, 1, 0), skip(body.len())];
    program.extend_from_slice(body);
    program
}

/// Fails with ENOSYS if the accumulator is in the range, which must not be empty; else continues.
pub(super) fn fail_within(range: std::ops::Range<u32>) -> [sock_filter; 3] {
    [
        jump(libc::BPF_JGE, range.end, 2, 0),
        jump(libc::BPF_JGE, range.start, 0, 1),
        ret(FAIL_ENOSYS),
    ]
}

/// Clears the bits of the accumulator that are not in the mask.
pub(super) fn mask(bits: u32) -> sock_filter {
    statement(BPF_ALU | BPF_AND | BPF_K, bits)
}

/// Allows the call if this argument has none of these flags; else returns `denial`.
pub(super) fn allow_without_flags(argument: usize, flags: u32, denial: u32) -> Vec<sock_filter> {
    let mut checks = vec![load(argument), mask(flags)];
    checks.extend(dispatch(&[(0, SECCOMP_RET_ALLOW)]));
    checks.push(ret(denial));
    checks
}

/// Loads the word at this offset, and returns the action of the entry whose value it equals; `otherwise` if there is none.
pub(super) fn decide_by(offset: usize, actions: &[(u32, u32)], otherwise: u32) -> Vec<sock_filter> {
    let mut program = vec![load(offset)];
    program.extend(dispatch(actions));
    program.push(ret(otherwise));
    program
}

fn skip(instructions: usize) -> sock_filter {
    statement(BPF_JMP | BPF_JA, instructions as u32)
}

/// Returns the action of the entry whose value the accumulator equals; continues if there is none.
pub(super) fn dispatch(actions: &[(u32, u32)]) -> impl Iterator<Item = sock_filter> {
    actions
        .iter()
        .flat_map(|&(value, action)| [jump(BPF_JEQ, value, 0, 1), ret(action)])
}

/// Loads the word at this offset of `struct seccomp_data` into the accumulator.
pub(super) fn load(offset: usize) -> sock_filter {
    statement(BPF_LD | BPF_W | BPF_ABS, offset as u32)
}

/// Ends the filter with this action (SECCOMP_RET_*).
pub(super) const fn ret(action: u32) -> sock_filter {
    statement(BPF_RET | BPF_K, action)
}

/// Compares the accumulator with a value, and skips `if_so` or `if_not` instructions.
pub(super) fn jump(comparison: u32, value: u32, if_so: u8, if_not: u8) -> sock_filter {
    sock_filter {
        jt: if_so,
        jf: if_not,
        ..statement(BPF_JMP | comparison | BPF_K, value)
    }
}

const fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

pub(super) const ARCHITECTURE: usize = std::mem::offset_of!(seccomp_data, arch);
pub(super) const NUMBER: usize = std::mem::offset_of!(seccomp_data, nr);
const FIRST_ARGUMENT: usize = std::mem::offset_of!(seccomp_data, args);

/// The offset of an argument, counted from zero: of its lower half, as all supported machines are little-endian. The kernel
/// reads only that half of an int.
pub(super) const fn argument(index: usize) -> usize {
    FIRST_ARGUMENT + index * size_of::<u64>()
}

/// The action by which a call fails with this error number.
pub(super) const fn failure(errno: i32) -> u32 {
    SECCOMP_RET_ERRNO | errno.cast_unsigned()
}

pub(super) const FAIL_ENOSYS: u32 = failure(libc::ENOSYS);

/// From `linux/audit.h`: the ELF machine number, with bits for 64-bit and little-endian.
#[cfg(target_arch = "x86_64")]
pub(super) const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const NATIVE: u32 = 0xc000_00b7;
#[cfg(target_arch = "riscv64")]
pub(super) const NATIVE: u32 = 0xc000_00f3;
/// `__X32_SYSCALL_BIT` of `asm/unistd.h`.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;

/// Evaluates a filter of these helpers as the kernel would (seccomp(2)), for a call's ABI, number and arguments.
#[cfg(test)]
pub(super) fn evaluate(
    program: &[sock_filter],
    architecture: u32,
    number: u32,
    args: [u64; 6],
) -> u32 {
    let (mut next, mut accumulator) = (0, 0);
    loop {
        let instruction = program[next];
        next += 1;
        let code = u32::from(instruction.code);
        if code == BPF_LD | BPF_W | BPF_ABS {
            accumulator = match instruction.k as usize {
                NUMBER => number,
                ARCHITECTURE => architecture,
                argument => {
                    let offset = argument - FIRST_ARGUMENT;
                    (args[offset / 8] >> (8 * (offset % 8))) as u32
                }
            };
        } else if code == BPF_ALU | BPF_AND | BPF_K {
            accumulator &= instruction.k;
        } else if code == BPF_JMP | BPF_JA {
            next += instruction.k as usize;
        } else if code == BPF_RET | BPF_K {
            return instruction.k;
        } else {
            let holds = match code {
                _ if code == BPF_JMP | BPF_JEQ | BPF_K => accumulator == instruction.k,
                _ if code == BPF_JMP | libc::BPF_JGE | BPF_K => accumulator >= instruction.k,
                other => panic!("an unknown instruction, {other}"),
            };
            next += usize::from(if holds {
                instruction.jt
            } else {
                instruction.jf
            });
        }
    }
}

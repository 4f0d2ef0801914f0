//! The architecture's part: how a system call is made, and the calls' numbers.

use core::ffi::c_int;

use super::{Errno, Result};

/// # Safety
///
/// What the call does to memory and descriptors must be what the caller means.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn system_call(number: usize, [a, b, c, d, e, f]: [usize; 6]) -> Result<usize> {
    let result: isize;
    // SAFETY: the kernel's calling convention (syscall(2)): it keeps all registers but these.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    checked(result)
}

/// # Safety
///
/// As above.
#[cfg(target_arch = "aarch64")]
pub(super) unsafe fn system_call(number: usize, [a, b, c, d, e, f]: [usize; 6]) -> Result<usize> {
    let result: isize;
    // SAFETY: the kernel's calling convention (syscall(2)): it keeps all registers but x0.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    checked(result)
}

/// The last page of addresses stands for error numbers.
fn checked(result: isize) -> Result<usize> {
    match result {
        -4095..=-1 => Err(Errno(c_int::try_from(result.unsigned_abs()).unwrap_or(5))),
        _ => Ok(result.cast_unsigned()),
    }
}

/// The system calls by number (syscall(2) of the architecture).
#[expect(missing_docs, reason = "each has its own manual page")]
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub enum Call {
    Write = 1,
    Close = 3,
    Lseek = 8,
    Mmap = 9,
    GetPid = 39,
    Socket = 41,
    Connect = 42,
    SendTo = 44,
    RecvFrom = 45,
    SendMsg = 46,
    RecvMsg = 47,
    Listen = 50,
    GetSockName = 51,
    GetPeerName = 52,
    SetSockOpt = 54,
    GetSockOpt = 55,
    Kill = 62,
    Fcntl = 72,
    Flock = 73,
    ExitGroup = 231,
    OpenAt = 257,
    PPoll = 271,
    Accept4 = 288,
    SendMMsg = 307,
}

/// The same.
#[expect(missing_docs, reason = "each has its own manual page")]
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy, Debug)]
pub enum Call {
    Fcntl = 25,
    Flock = 32,
    OpenAt = 56,
    Close = 57,
    Lseek = 62,
    Write = 64,
    PPoll = 73,
    ExitGroup = 94,
    Kill = 129,
    GetPid = 172,
    Socket = 198,
    Listen = 201,
    Connect = 203,
    GetSockName = 204,
    GetPeerName = 205,
    SendTo = 206,
    RecvFrom = 207,
    SetSockOpt = 208,
    GetSockOpt = 209,
    SendMsg = 211,
    RecvMsg = 212,
    Mmap = 222,
    Accept4 = 242,
    SendMMsg = 269,
}

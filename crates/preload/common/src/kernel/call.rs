//! The architecture-specific part: the system call instruction, and the calls' numbers.

use core::ffi::c_int;

use super::errno::{Errno, Result};

/// Makes a system call.
///
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

/// Makes a system call.
///
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

/// Converts the result of a system call: values of the last page of addresses are error numbers.
fn checked(result: isize) -> Result<usize> {
    match result {
        -4095..=-1 => Err(Errno(c_int::try_from(result.unsigned_abs()).unwrap_or(5))),
        _ => Ok(result.cast_unsigned()),
    }
}

/// The system calls by number (syscall(2) of the architecture).
#[expect(missing_docs, reason = "each has its own manual page")]
#[derive(Clone, Copy, Debug)]
pub enum Call {
    Read = number(0, 63),
    Write = number(1, 64),
    Close = number(3, 57),
    FStat = number(5, 80),
    Lseek = number(8, 62),
    Mmap = number(9, 222),
    GetPid = number(39, 172),
    Socket = number(41, 198),
    Connect = number(42, 203),
    SendTo = number(44, 206),
    RecvFrom = number(45, 207),
    SendMsg = number(46, 211),
    RecvMsg = number(47, 212),
    Listen = number(50, 201),
    GetSockName = number(51, 204),
    GetPeerName = number(52, 205),
    SetSockOpt = number(54, 208),
    GetSockOpt = number(55, 209),
    ExecVe = number(59, 221),
    Kill = number(62, 129),
    Fcntl = number(72, 25),
    Flock = number(73, 32),
    ExitGroup = number(231, 94),
    OpenAt = number(257, 56),
    PPoll = number(271, 73),
    Accept4 = number(288, 242),
    SendMMsg = number(307, 269),
    ExecVeAt = number(322, 281),
}

const fn number(x86_64: isize, aarch64: isize) -> isize {
    if cfg!(target_arch = "x86_64") {
        x86_64
    } else {
        aarch64
    }
}

/// Makes a system call of at most five arguments.
///
/// # Safety
///
/// As [`system_call`].
pub(super) unsafe fn call(call: Call, [a, b, c, d, e]: [usize; 5]) -> Result<usize> {
    // SAFETY: the caller's.
    unsafe { system_call(call as usize, [a, b, c, d, e, 0]) }
}

/// An int argument: the upper half of the register is ignored.
pub(super) fn arg(value: c_int) -> usize {
    value as isize as usize
}

pub(super) fn descriptor(result: usize) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}

/// close(2).
pub fn close(fd: c_int) {
    // SAFETY: no memory is involved. Nothing can be done about an error.
    let _ = unsafe { call(Call::Close, [arg(fd), 0, 0, 0, 0]) };
}

// These, too, are the same on both architectures.
/// The level of a socket's own options.
pub const SOL_SOCKET: c_int = 1;
/// Peek: leave the data in the queue.
pub const MSG_PEEK: c_int = 0x2;
/// EAGAIN instead of blocking.
pub const MSG_DONTWAIT: c_int = 0x40;
/// No SIGPIPE.
pub const MSG_NOSIGNAL: c_int = 0x4000;
/// Descriptors received are closed by exec(3).
pub const MSG_CMSG_CLOEXEC: c_int = 0x4000_0000;
/// Datagram sockets.
pub const SOCK_DGRAM: c_int = 2;
/// The type of netlink(7) sockets.
pub const SOCK_RAW: c_int = 3;
/// O_NONBLOCK.
pub const SOCK_NONBLOCK: c_int = 0o4000;
/// O_CLOEXEC.
pub const SOCK_CLOEXEC: c_int = 0o2_000_000;
pub(super) const AT_FDCWD: c_int = -100;
pub(super) const O_RDWR: c_int = 2;
pub(super) const O_CLOEXEC: c_int = SOCK_CLOEXEC;

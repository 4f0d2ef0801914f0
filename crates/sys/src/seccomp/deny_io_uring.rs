//! Denying io_uring to a program: connections accepted through a ring would bypass a preloaded library.

use std::io;

use crate::{NameCall, Result};

/// Makes io_uring_setup(2) fail with ENOSYS in this process and its descendants, as before Linux
/// 5.1: programs then fall back to ordinary system calls.
///
/// # Errors
///
/// EACCES without CAP_SYS_ADMIN. With `no_new_privs` any process could install the filter, but sudo(8) and its like
/// would fail below the program.
pub fn deny_io_uring() -> Result<()> {
    let filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NUMBER_AT),
        jump_unless_equal(libc::SYS_io_uring_setup as u32, 1),
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned(),
        ),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the program, which lives across the call, and does not write to it.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    };
    match rc {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).call("seccomp(SECCOMP_SET_MODE_FILTER)"),
    }
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

fn jump_unless_equal(k: u32, skip: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: skip,
        k,
    }
}

/// Offset in `struct seccomp_data`. io_uring's calls have the same numbers on all architectures, so the
/// architecture need not be checked.
const NUMBER_AT: u32 = 0;

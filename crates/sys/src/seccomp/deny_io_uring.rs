//! Denying io_uring to a program: connections accepted through a ring would bypass a preloaded library.

use libc::SECCOMP_RET_ALLOW;

use super::bpf::{FAIL_ENOSYS, NUMBER, decide_by, install};
use crate::{NameCall, Result};

/// Makes io_uring_setup(2) fail with ENOSYS in this process and its descendants, as before Linux
/// 5.1: programs then fall back to ordinary system calls.
///
/// # Errors
///
/// EACCES without CAP_SYS_ADMIN. With `no_new_privs` any process could install the filter, but then sudo(8) and its like would
/// fail in the program and its descendants.
pub fn deny_io_uring() -> Result<()> {
    // io_uring's calls have the same numbers on all architectures, so the architecture need not be checked.
    let denied = (libc::SYS_io_uring_setup as u32, FAIL_ENOSYS);
    install(&decide_by(NUMBER, &[denied], SECCOMP_RET_ALLOW), 0)
        .map(drop)
        .call("seccomp(SECCOMP_SET_MODE_FILTER)")
}

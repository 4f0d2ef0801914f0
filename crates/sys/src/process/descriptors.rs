//! The descriptors that an executed program inherits.

use crate::error::checked;
use crate::{NameCall, Result};

/// Sets close-on-exec on every descriptor but the standard streams, also on those that this process has inherited
/// (close_range(2) with CLOSE_RANGE_CLOEXEC, since Linux 5.11).
///
/// # Errors
///
/// ENOSYS or EINVAL before Linux 5.11: nothing was changed.
pub fn close_on_exec_above_stderr() -> Result<()> {
    // SAFETY: with this flag the call closes nothing now; it takes integers only.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST_AFTER_STDERR,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    checked(rc)
        .map(drop)
        .call("close_range(CLOSE_RANGE_CLOEXEC)")
}

const FIRST_AFTER_STDERR: u32 = 3;

//! Confinement of this process until its end: the files that it may open ([`files`], by Landlock) and the system calls that
//! it may make ([`system_calls`], by seccomp).
//!
//! Both can be narrowed further, and never widened. They apply to the calling thread and to threads that it starts later: call
//! [`require_single_thread`] first, as other threads would stay unconfined.

mod denied_call;
pub mod files;
pub mod scopes;
pub mod system_calls;

use std::io;

use super::fork::thread_count;
use crate::{NameCall, Result};

/// Checks that this process has one thread.
///
/// # Errors
///
/// EBUSY if it has more; ENOENT without /proc.
pub fn require_single_thread() -> Result<()> {
    match thread_count()? {
        1 => Ok(()),
        _ => {
            Err(io::Error::from_raw_os_error(libc::EBUSY)).call("confinement, with several threads")
        }
    }
}

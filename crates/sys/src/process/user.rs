//! The user that this process acts as, and acting as another.

pub mod act_as;
pub mod task_status;

use rustix::process::geteuid;

/// The effective user id (credentials(7)).
pub fn effective_uid() -> u32 {
    geteuid().as_raw()
}

/// Whether this process runs as root (effective user id 0).
pub fn is_root() -> bool {
    geteuid().is_root()
}

//! Keeping secrets in memory out of core dumps and away from other processes.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::{NameCall, Result};

/// Disables core dumps of this process; other processes of its user can't attach to it or read its memory either
/// (PR_SET_DUMPABLE, since Linux 2.3.20; ptrace(2)). execve(2) reverts it.
///
/// # Errors
///
/// Only where a sandbox forbids prctl(2).
pub fn disable() -> Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).call("prctl(PR_SET_DUMPABLE)")
}

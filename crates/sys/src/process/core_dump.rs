//! Keeping secrets in memory from core dumps and other processes.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::{NameCall, Result};

/// This process leaves no core dump, and others of its user can't attach to it or read its memory
/// (PR_SET_DUMPABLE, since Linux 2.3.20; ptrace(2)). execve(2) undoes it.
pub fn disable() -> Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).call("prctl(PR_SET_DUMPABLE)")
}

//! How processes of ours depend on each other.

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::{NameCall, Result};

/// Asks the kernel to end this process with SIGKILL when the thread that started it ends
/// (prctl(2), PR_SET_PDEATHSIG), so that a helper never outlives what it helps.
pub fn die_with_parent() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).call("prctl(PR_SET_PDEATHSIG)")
}

//! Linux capabilities of this process (capabilities(7)), and dropping them.

pub use rustix::thread::CapabilitySet;
use rustix::thread::{self, CapabilitySets};

use crate::{NameCall, Result};

/// Whether each of `capabilities` is in the calling thread's effective set.
pub fn is_effective(capabilities: CapabilitySet) -> bool {
    thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capabilities))
}

/// Whether `capability` is in the calling thread's bounding set, so that execve(2) may grant it.
pub fn is_in_bounding_set(capability: CapabilitySet) -> bool {
    thread::capability_is_in_bounding_set(capability).unwrap_or(true)
}

/// Whether execve(2) grants the calling thread no privileges (no_new_privs, prctl(2)).
pub fn has_no_new_privs() -> bool {
    thread::no_new_privs().unwrap_or(false)
}

/// Makes effective those of `capabilities` that are permitted, and no others. The others stay permitted and can be made
/// effective again, so this is a trial of [`keep_only`].
pub fn set_effective(capabilities: CapabilitySet) -> Result<()> {
    edit_sets(|sets| sets.effective = sets.permitted & capabilities)
}

/// Sets no_new_privs: execve(2) grants the calling thread no privilege from now on.
pub fn set_no_new_privs() -> Result<()> {
    thread::set_no_new_privs(true).call("prctl(PR_SET_NO_NEW_PRIVS)")
}

/// Drops every capability of the calling thread that is not in `keep`, and the means to regain capabilities: clears the
/// bounding, inheritable and ambient sets and sets `no_new_privs`.
///
/// Capabilities belong to threads: call it before any other thread exists. Without CAP_SETPCAP the bounding set stays
/// as it is, and in a sandbox that forbids capset(2) so does the inheritable set. Both are harmless under
/// `no_new_privs`.
///
/// # Errors
///
/// EPERM where a sandbox forbids capset(2) and the sets are not as wanted already.
pub fn keep_only(keep: CapabilitySet) -> Result<()> {
    thread::clear_ambient_capability_set().call("prctl(PR_CAP_AMBIENT_CLEAR_ALL)")?;
    // Inheritable capabilities have no effect under `no_new_privs`: a failure is harmless.
    let _ = edit_sets(|sets| sets.inheritable = CapabilitySet::empty());
    drop_all_but(keep)
}

/// As [`keep_only`], but the programs that this thread executes get those capabilities, too, as ambient ones (since Linux 4.3).
/// Where ambient capabilities are forbidden, the programs get none.
pub fn keep_only_and_pass(keep: CapabilitySet) -> Result<()> {
    match raise_ambient(keep) {
        Ok(()) => drop_all_but(keep),
        Err(_) => keep_only(keep),
    }
}

/// Sets `no_new_privs`, and drops all but `keep` from the effective, permitted and, where possible, bounding set.
fn drop_all_but(keep: CapabilitySet) -> Result<()> {
    set_no_new_privs()?;
    edit_sets(|sets| sets.effective = sets.permitted)?;
    if is_effective(CapabilitySet::SETPCAP) {
        clear_bounding_set().call("prctl(PR_CAPBSET_DROP)")?;
    }
    edit_sets(|sets| {
        sets.permitted &= keep;
        sets.effective = sets.permitted;
    })
}

/// Makes the program that is executed next inherit the permitted ones of `capabilities`, even if root does not run it (ambient
/// capabilities, since Linux 4.3).
///
/// # Errors
///
/// EPERM under a sandbox, or with SECBIT_NO_CAP_AMBIENT_RAISE.
pub fn raise_ambient(capabilities: CapabilitySet) -> Result<()> {
    edit_sets(|sets| sets.inheritable = sets.permitted & capabilities)?;
    thread::clear_ambient_capability_set().call("prctl(PR_CAP_AMBIENT_CLEAR_ALL)")?;
    let permitted = thread::capabilities(None).call("capget(2)")?.permitted;
    for capability in permitted & capabilities {
        thread::configure_capability_in_ambient_set(capability, true)
            .call("prctl(PR_CAP_AMBIENT_RAISE)")?;
    }
    Ok(())
}

/// Edits the calling thread's sets. Makes no system call where that changes nothing: a sandbox may forbid capset(2) to a
/// process that has the right sets already.
fn edit_sets(edit: impl FnOnce(&mut CapabilitySets)) -> Result<()> {
    let now = thread::capabilities(None).call("capget(2)")?;
    let mut wanted = now;
    edit(&mut wanted);
    if wanted == now {
        return Ok(());
    }
    thread::set_capabilities(None, wanted).call("capset(2)")
}

/// Drops every capability that the kernel has, also those without a name in [`CapabilitySet`].
fn clear_bounding_set() -> rustix::io::Result<()> {
    (0..u64::BITS)
        .map(|number| CapabilitySet::from_bits_retain(1 << number))
        .filter(|&bit| thread::capability_is_in_bounding_set(bit).unwrap_or(false))
        .try_for_each(thread::remove_capability_from_bounding_set)
}

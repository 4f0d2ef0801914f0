//! Linux capabilities of this process (capabilities(7)), and dropping them.

use std::io;

pub use caps::Capability;
use caps::{CapSet, CapsHashSet};

use crate::{NameCall, Result};

/// Whether `capability` is in the calling thread's effective set.
pub fn is_effective(capability: Capability) -> bool {
    caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false)
}

/// Whether `capability` is in the calling thread's bounding set, so that exec may grant it.
pub fn is_in_bounding_set(capability: Capability) -> bool {
    caps::has_cap(None, CapSet::Bounding, capability).unwrap_or(true)
}

/// Whether exec grants the calling thread no privileges (no_new_privs, prctl(2)).
pub fn has_no_new_privs() -> bool {
    rustix::thread::no_new_privs().unwrap_or(false)
}

/// Sets the effective set to those of `these` that are permitted. The others stay permitted and can be made effective
/// again: a trial of [`keep_only`].
///
/// # Errors
///
/// EPERM where a sandbox forbids capget(2) or capset(2).
pub fn set_effective(these: &[Capability]) -> Result<()> {
    let held = permitted()?;
    let used = these
        .iter()
        .copied()
        .filter(|capability| held.contains(capability))
        .collect();
    set(CapSet::Effective, &used)
}

/// Sets no_new_privs: execve(2) grants the calling thread no privilege from now on.
///
/// # Errors
///
/// Only where a sandbox forbids prctl(2).
pub fn set_no_new_privs() -> Result<()> {
    rustix::thread::set_no_new_privs(true).call("prctl(PR_SET_NO_NEW_PRIVS)")
}

/// Drops every capability of the calling thread except those of `keep` that it has, and the means to
/// regain them: clears the bounding, inheritable and ambient sets and sets `no_new_privs`.
///
/// Capabilities belong to threads: call it before any other thread exists. Without CAP_SETPCAP the bounding set stays
/// as it is, and in a sandbox that forbids capset(2) so does the inheritable set. Both are harmless under
/// `no_new_privs`.
///
/// # Errors
///
/// EPERM where a sandbox forbids capset(2) and the sets are not as wanted already.
pub fn keep_only(keep: &[Capability]) -> Result<()> {
    set_no_new_privs()?;
    let held = permitted()?;
    set(CapSet::Effective, &held)?;
    if held.contains(&Capability::CAP_SETPCAP) {
        clear(CapSet::Bounding, "prctl(PR_CAPBSET_DROP)")?;
    }
    clear(CapSet::Ambient, "prctl(PR_CAP_AMBIENT_CLEAR_ALL)")?;
    // Useless under `no_new_privs`, so this may fail.
    let _ = clear(CapSet::Inheritable, "capset(2), inheritable");
    let kept = keep
        .iter()
        .copied()
        .filter(|capability| held.contains(capability))
        .collect();
    set(CapSet::Effective, &kept)?;
    set(CapSet::Permitted, &kept)
}

/// Passes those of `these` that are permitted to the program that this process will execute, also where it does not run
/// as root (ambient capabilities, since Linux 4.3).
///
/// # Errors
///
/// EPERM under a sandbox, or with SECBIT_NO_CAP_AMBIENT_RAISE.
pub fn raise_ambient(these: &[Capability]) -> Result<()> {
    let held = permitted()?;
    let passed = these
        .iter()
        .copied()
        .filter(|one| held.contains(one))
        .collect();
    set(CapSet::Inheritable, &passed)?;
    set(CapSet::Ambient, &passed)
}

fn permitted() -> Result<CapsHashSet> {
    caps::read(None, CapSet::Permitted)
        .map_err(io::Error::other)
        .call("capget(2)")
}

/// Makes no call where there is nothing to change: a sandbox may forbid capset(2) to a process that has what it needs.
fn set(which: CapSet, value: &CapsHashSet) -> Result<()> {
    if caps::read(None, which).is_ok_and(|now| now == *value) {
        return Ok(());
    }
    caps::set(None, which, value)
        .map_err(io::Error::other)
        .call("capset(2)")
}

fn clear(set: CapSet, call: &'static str) -> Result<()> {
    caps::clear(None, set).map_err(io::Error::other).call(call)
}

//! Linux capabilities of this process: which it has, and giving up the others for good.

use std::io;

pub use caps::Capability;
use caps::{CapSet, CapsHashSet};

use crate::{NameCall, Result};

/// Whether the calling thread may use `capability` now (its effective set, capabilities(7)).
pub fn is_effective(capability: Capability) -> bool {
    caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false)
}

/// Whether the calling thread can get `capability` by executing something: it is in its bounding set.
pub fn is_in_bounding_set(capability: Capability) -> bool {
    caps::has_cap(None, CapSet::Bounding, capability).unwrap_or(true)
}

/// Whether files give the calling thread no capabilities (no_new_privs, prctl(2)).
pub fn has_no_new_privs() -> bool {
    rustix::thread::no_new_privs().unwrap_or(false)
}

/// Uses only those of `these` that the calling thread has. The others stay permitted and can be used
/// again: this tries out what [`keep_only`] makes final.
pub fn set_effective(these: &[Capability]) -> Result<()> {
    let held = permitted()?;
    let used = these
        .iter()
        .copied()
        .filter(|capability| held.contains(capability))
        .collect();
    set(CapSet::Effective, &used)
}

/// Makes execve(2) give the calling thread no privilege from now on (no_new_privs).
pub fn set_no_new_privs() -> Result<()> {
    rustix::thread::set_no_new_privs(true).call("prctl(PR_SET_NO_NEW_PRIVS)")
}

/// Gives up every capability of the calling thread but those of `keep` that it has, and the means to
/// get others back: bounding, inheritable and ambient sets are emptied and `no_new_privs` is set.
///
/// Capabilities belong to threads: call it before any other thread exists. Without CAP_SETPCAP the
/// bounding set stays as it is, which is harmless under `no_new_privs`; and so does the inheritable set
/// in a sandbox that forbids capset(2).
pub fn keep_only(keep: &[Capability]) -> Result<()> {
    set_no_new_privs()?;
    let held = permitted()?;
    set(CapSet::Effective, &held)?;
    if held.contains(&Capability::CAP_SETPCAP) {
        clear(CapSet::Bounding, "prctl(PR_CAPBSET_DROP)")?;
    }
    clear(CapSet::Ambient, "prctl(PR_CAP_AMBIENT_CLEAR_ALL)")?;
    // Of no use to anybody under `no_new_privs`, so this may be refused.
    let _ = clear(CapSet::Inheritable, "capset(2), inheritable");
    let kept = keep
        .iter()
        .copied()
        .filter(|capability| held.contains(capability))
        .collect();
    set(CapSet::Effective, &kept)?;
    set(CapSet::Permitted, &kept)
}

/// Lets the program that this process will execute have those of `these` that the calling thread has, also
/// where it does not run as root (ambient capabilities, since Linux 4.3).
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

/// Without a call where there is nothing to change: a sandbox may forbid it to those who need no more.
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

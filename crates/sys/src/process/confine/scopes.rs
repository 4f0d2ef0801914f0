//! Signals and abstract Unix sockets of processes outside (landlock(7), "scopes", since Linux 6.12).

use std::io;

use landlock::{
    CompatLevel, Compatible, RestrictionStatus, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope,
};

use crate::{NameCall, Result};

/// Keeps this thread, and what it executes and starts, from sending signals to processes outside, and from abstract Unix
/// sockets of theirs. Returns whether the kernel supports it. no_new_privs is not set.
///
/// # Errors
///
/// EPERM without CAP_SYS_ADMIN over the thread's user namespace, or no_new_privs.
pub fn isolate() -> Result<bool> {
    let isolated = || -> std::result::Result<RestrictionStatus, landlock::RulesetError> {
        Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .scope(Scope::AbstractUnixSocket | Scope::Signal)?
            .create()?
            .no_new_privs(false)
            .restrict_self()
    };
    let status = isolated()
        .map_err(io::Error::other)
        .call("landlock_restrict_self(2)")?;
    Ok(status.ruleset == RulesetStatus::FullyEnforced)
}

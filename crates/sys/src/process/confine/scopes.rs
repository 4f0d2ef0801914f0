//! Denies signals to processes outside, and connections to their abstract Unix sockets (landlock(7), "scopes", since Linux
//! 6.12).

use std::io;

use landlock::{
    CompatLevel, Compatible, RestrictionStatus, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope,
};

use crate::{NameCall, Result};

/// Keeps this thread, and what it executes and starts, from sending signals to processes outside, and from connecting to their
/// abstract Unix sockets. Returns whether the kernel supports that. Does not set no_new_privs.
///
/// # Errors
///
/// EPERM with neither CAP_SYS_ADMIN over the thread's user namespace nor no_new_privs.
pub fn isolate() -> Result<bool> {
    let status = restrict_scopes()
        .map_err(io::Error::other)
        .call("landlock_restrict_self(2)")?;
    Ok(status.ruleset == RulesetStatus::FullyEnforced)
}

fn restrict_scopes() -> Result<RestrictionStatus, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?
        .no_new_privs(false)
        .restrict_self()
}

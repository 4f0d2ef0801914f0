//! Why this host refuses the namespaces of a jail, and the command that allows them.

use std::fs;
use std::io::ErrorKind::StorageFull;

use peername_sys::SyscallError;
use peername_sys::process::user;

use crate::JailError;

/// Returns the error for a failed call that makes namespaces. If the host has refused the call, the error says what to do about
/// the refusal: about the outer jail if `is_nested`, else about the host's settings. `is_nested` makes no difference for a
/// limit on namespaces.
pub(crate) fn explain(failed: SyscallError, is_nested: bool) -> JailError {
    let fix = match failed.source.kind() {
        StorageFull => limit_fix(),
        _ if failed.is_permission() && is_nested => return JailError::Nested(failed),
        _ if failed.is_permission() => permission_fix().to_owned(),
        _ => return JailError::Network(failed),
    };
    JailError::Forbidden { failed, fix }
}

/// The fix for an exceeded limit (user_namespaces(7), namespaces(7)). A call fails also at the limit of an outer user namespace,
/// which can't be read here.
fn limit_fix() -> String {
    let is_zero = |limit: &&str| {
        fs::read_to_string(format!("/proc/sys/user/{limit}")).is_ok_and(|text| text.trim() == "0")
    };
    match LIMITS.into_iter().find(is_zero) {
        Some(limit) => {
            format!("user.{limit} is 0: `sudo sysctl -w user.{limit}=10000` allows them")
        }
        None => format!(
            "One of the limits {} is reached, on this host or in a container around this one: raise it",
            LIMITS.map(|limit| format!("user.{limit}")).join(", ")
        ),
    }
}

fn permission_fix() -> &'static str {
    // The settings concern users without privilege only.
    if user::is_root() {
        return CONTAINER;
    }
    SETTINGS
        .iter()
        .find(|(file, value, _)| fs::read_to_string(file).is_ok_and(|text| text.trim() == *value))
        .map_or(CONTAINER, |(_, _, fix)| fix)
}

/// The limits on the namespaces that a jail makes.
const LIMITS: [&str; 3] = [
    "max_user_namespaces",
    "max_net_namespaces",
    "max_mnt_namespaces",
];
/// Settings that forbid user namespaces: the file, the value, and the fix.
const SETTINGS: [(&str, &str, &str); 2] = [
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "kernel.unprivileged_userns_clone is 0, so only root may: `sudo sysctl -w \
         kernel.unprivileged_userns_clone=1` allows it to every user",
    ),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor restricts them (kernel.apparmor_restrict_unprivileged_userns, as on Ubuntu since 23.10): load the \
         profile that allows them to peername alone (docs/confinement.md), or `sudo sysctl -w \
         kernel.apparmor_restrict_unprivileged_userns=0`",
    ),
];
const CONTAINER: &str = "In a container the seccomp profile of the container manager forbids unshare(2) and mount(2): start it \
    with `--security-opt seccomp=unconfined`, and for Docker also `--security-opt apparmor=unconfined` and \
    `--security-opt systempaths=unconfined`";

//! Why this host refuses user namespaces, and the command that allows them.

use std::fs;
use std::io::ErrorKind::StorageFull;

use peername_sys::SyscallError;
use peername_sys::process::user;

use crate::JailError;

/// The error for a call that made the namespaces: with the fix that the host's settings call for, if the host has refused it;
/// in a jail it is that one.
pub(crate) fn explain(failed: SyscallError, is_jailed: bool) -> JailError {
    let fix = match failed.source.kind() {
        StorageFull => limit(),
        _ if failed.is_permission() && is_jailed => JAILED.to_owned(),
        _ if failed.is_permission() => setting().to_owned(),
        _ => return JailError::Network(failed),
    };
    JailError::Forbidden { failed, fix }
}

/// user_namespaces(7), namespaces(7).
fn limit() -> String {
    let max = fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    format!(
        "user.max_user_namespaces is {}: `sudo sysctl -w user.max_user_namespaces=10000` allows more; \
         user.max_net_namespaces and user.max_mnt_namespaces limit the others that a jail needs",
        max.trim()
    )
}

fn setting() -> &'static str {
    let is_set = |(file, value): &(&str, &str)| {
        fs::read_to_string(file).is_ok_and(|text| text.trim() == *value)
    };
    // The settings concern users without privilege.
    let settings = SETTINGS.iter().filter(|_| !user::is_root());
    let mut settings = settings.filter(|(file, value, _)| is_set(&(file, value)));
    settings.next().map_or(CONTAINER, |(_, _, fix)| fix)
}

/// Settings that forbid them: the file, its value, and what to do.
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
const JAILED: &str = "This is in a jail of peername, in which mounts can't be changed: `peername jail --allow-mounts` allows that";
const CONTAINER: &str = "In a container the seccomp profile of the container manager forbids unshare(2) and mount(2): start it \
    with `--security-opt seccomp=unconfined`, and for Docker also `--security-opt apparmor=unconfined` and \
    `--security-opt systempaths=unconfined`";

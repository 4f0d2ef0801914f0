//! Why this host refuses user namespaces, and the command that allows them.

use std::fs;

use peername_sys::SyscallError;

use crate::JailError;

/// The error for a refused user namespace, with the fix that the host's settings call for.
pub(crate) fn explain(failed: SyscallError) -> JailError {
    let is_set = |(file, value): &(&str, &str)| {
        fs::read_to_string(file).is_ok_and(|text| text.trim() == *value)
    };
    let fix = SETTINGS
        .iter()
        .find(|(file, value, _)| is_set(&(file, value)))
        .map_or(CONTAINER, |(_, _, fix)| fix);
    JailError::Forbidden {
        failed,
        fix: fix.to_owned(),
    }
}

/// Settings that forbid them: the file, its value, and what to do.
const SETTINGS: [(&str, &str, &str); 3] = [
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "user.max_user_namespaces is 0: `sudo sysctl -w user.max_user_namespaces=10000` allows some",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "kernel.unprivileged_userns_clone is 0, so only root may: `sudo sysctl -w \
         kernel.unprivileged_userns_clone=1` allows it to every user",
    ),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor restricts them (kernel.apparmor_restrict_unprivileged_userns, as on Ubuntu since 23.10): install \
         packaging/apparmor/peername, which allows them to peername alone, or `sudo sysctl -w \
         kernel.apparmor_restrict_unprivileged_userns=0`",
    ),
];
const CONTAINER: &str = "In a container the seccomp profile of the container manager forbids unshare(2) and mount(2): start it \
    with `--security-opt seccomp=unconfined`, and for Docker also `--security-opt apparmor=unconfined` and \
    `--security-opt systempaths=unconfined`";

//! Settings of the kernel, by which a user acts on the whole host. They stay as writable in a user namespace as they were,
//! because the kernel checks user ids for them, and no capability.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use peername_sys::fs::mounts;
use peername_sys::process::user;

use super::mount_table::Mount;
use crate::JailError;

/// Makes the file systems with settings of the kernel read-only at each of their mounts. Two examples: a user may own a control
/// group, which can stop and kill every process in it; and in proc, root can set `kernel.core_pattern`, the program that the
/// kernel starts outside of the jail after a crash.
pub(super) fn make_read_only(table: &[Mount]) -> Result<(), JailError> {
    let settings: BTreeSet<_> = table.iter().flat_map(settings_paths).collect();
    // make_read_only includes the mounts below.
    let is_topmost = |path: &&PathBuf| {
        !path
            .ancestors()
            .skip(1)
            .any(|above| settings.contains(above))
    };
    for path in settings
        .iter()
        .filter(is_topmost)
        .filter(|path| path.exists())
    {
        mounts::make_read_only(path).map_err(|source| JailError::cover(path, source))?;
    }
    Ok(())
}

/// The paths of a mount that are made read-only.
fn settings_paths(mount: &Mount) -> Vec<PathBuf> {
    if mount.is_one_of(&SETTINGS) {
        vec![mount.point.clone()]
    } else if !mount.is_one_of(&["proc"]) || !user::is_root() {
        Vec::new()
    } else if PROC_SETTINGS
        .iter()
        .any(|name| mount.root.starts_with(Path::new("/").join(name)))
    {
        // A part of proc, as containers mount it.
        vec![mount.point.clone()]
    } else {
        PROC_SETTINGS.map(|name| mount.point.join(name)).to_vec()
    }
}

/// File systems that are settings of the kernel as a whole.
const SETTINGS: [&str; 12] = [
    "sysfs",
    "cgroup",
    "cgroup2",
    "debugfs",
    "tracefs",
    "securityfs",
    "configfs",
    "bpf",
    "pstore",
    "efivarfs",
    "binfmt_misc",
    "selinuxfs",
];
/// Settings of the kernel in proc. The settings of single processes are elsewhere there, and stay writable.
const PROC_SETTINGS: [&str; 13] = [
    "sys",
    "sysrq-trigger",
    "irq",
    "bus",
    "fs",
    "acpi",
    "scsi",
    "asound",
    "driver",
    "dynamic_debug",
    "latency_stats",
    "mtrr",
    "xen",
];

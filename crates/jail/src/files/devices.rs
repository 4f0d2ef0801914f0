//! Files through which root acts on the whole host at once. In a user namespace with all users they are writable, because
//! their kernel code compares user ids and asks for no capability.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use peername_sys::fs::mounts;
use peername_sys::process::user;

use super::{cover_existing, failed};
use crate::JailError;

/// As root: covers block devices, and makes the kernel's settings read-only: `kernel.core_pattern` names a program that the
/// kernel starts outside of the jail. Other users can't write any of them.
pub(super) fn protect(empty: &Path) -> Result<(), JailError> {
    if !user::is_root() {
        return Ok(());
    }
    for path in KERNEL_SETTINGS.map(Path::new) {
        if path.exists() {
            mounts::make_read_only(path).map_err(|source| failed(path, source))?;
        }
    }
    block_devices(Path::new("/dev"))
        .iter()
        .try_for_each(|device| cover_existing(device, empty))
}

fn block_devices(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(block_devices(&entry.path())),
            Ok(kind) if kind.is_block_device() => found.push(entry.path()),
            _ => {}
        }
    }
    found
}

const KERNEL_SETTINGS: [&str; 5] = [
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/irq",
    "/proc/bus",
    "/sys",
];

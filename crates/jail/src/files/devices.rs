//! Files through which a user acts on the whole host at once. In a user namespace they stay as writable as they were, because
//! their kernel code compares user ids and asks for no capability.

use std::fs::{self, FileType};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use peername_sys::fs::mounts;
use peername_sys::process::user;

use super::{cover_existing, failed};
use crate::JailError;

/// Covers disks, also those that a group of this user may open; and makes what changes the kernel's settings read-only. Control
/// groups (/sys/fs/cgroup) may be the user's own, and end or stop every process in them; in /proc, `kernel.core_pattern` names a
/// program that the kernel starts outside of the jail, and only root can write it.
pub(super) fn protect(empty: &Path) -> Result<(), JailError> {
    let of_root = KERNEL_SETTINGS.iter().filter(|_| user::is_root());
    for path in of_root.chain(&[DEVICE_SETTINGS]).map(Path::new) {
        if path.exists() {
            mounts::make_read_only(path).map_err(|source| failed(path, source))?;
        }
    }
    disks(Path::new("/dev"))
        .iter()
        .try_for_each(|device| cover_existing(device, empty))
}

fn disks(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(disks(&path)),
            Ok(kind) if kind.is_block_device() || is_pass_through(kind, &path) => found.push(path),
            _ => {}
        }
    }
    found
}

/// Whether it is a character device that takes commands for a disk: of SCSI (`sg0`, `bsg/0:0:0:0`), or of NVMe (`ng0n1`,
/// `nvme0`).
fn is_pass_through(kind: FileType, path: &Path) -> bool {
    let is_numbered = |name: &str, prefix: &str| {
        let rest = name.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_disk = ["sg", "ng", "nvme"]
        .iter()
        .any(|prefix| is_numbered(&name, prefix));
    kind.is_char_device() && (is_disk || path.starts_with("/dev/bsg"))
}

const DEVICE_SETTINGS: &str = "/sys";
const KERNEL_SETTINGS: [&str; 4] = ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"];

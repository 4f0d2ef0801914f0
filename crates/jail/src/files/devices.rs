//! Devices through which a user acts on the whole host. They stay as writable in a user namespace as they were, because the
//! kernel checks user ids for them, and no capability.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry, FileType};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use peername_sys::{NameCall, SyscallError};

use super::cover::cover_existing;
use super::mount_table::Mount;
use crate::JailError;

/// Covers by the empty file disks, including those that only a group of this user may open, and devices by which a program acts
/// outside.
pub(super) fn cover(empty: &Path, table: &[Mount]) -> Result<(), JailError> {
    let directories: BTreeSet<_> = table
        .iter()
        .filter(|mount| mount.is_one_of(&["devtmpfs"]) && mount.point.is_dir())
        .map(|mount| mount.point.as_path())
        .chain([Path::new("/dev")])
        .collect();
    for directory in directories {
        for device in covered_devices(directory)? {
            cover_existing(&device, empty)?;
        }
    }
    table
        .iter()
        .filter(|mount| is_covered_device_file(mount))
        .try_for_each(|mount| cover_existing(&mount.point, empty))
}

/// Whether a single device that is to be covered is mounted here. Containers get their devices by such mounts. Its name is that
/// of the mount's root.
fn is_covered_device_file(mount: &Mount) -> bool {
    // Other file systems are not asked: one in the network may hang.
    let may_be_device = mount.is_one_of(&["devtmpfs", "tmpfs"]) && mount.root != Path::new("/");
    may_be_device
        && fs::symlink_metadata(&mount.point)
            .is_ok_and(|metadata| is_covered_device(metadata.file_type(), &mount.root))
}

/// Finds the devices to cover in this directory and below it.
fn covered_devices(dir: &Path) -> Result<Vec<PathBuf>, JailError> {
    let entries = readable_entries(dir).map_err(|failed| JailError::cover(dir, failed))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(covered_devices(&path)?),
            Ok(kind) if is_covered_device(kind, &path) => found.push(path),
            // Not a device to cover, or removed meanwhile.
            _ => {}
        }
    }
    Ok(found)
}

/// The entries of a directory, unless it does not exist or this user can't read it: then the program can't either.
fn readable_entries(dir: &Path) -> Result<Vec<DirEntry>, SyscallError> {
    match fs::read_dir(dir) {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::PermissionDenied
            ) =>
        {
            Ok(Vec::new())
        }
        opened => opened
            .call("open(2)")?
            .collect::<io::Result<_>>()
            .call("getdents64(2)"),
    }
}

/// Whether this is a disk, or a character device whose name is one of those by which a program acts outside of the jail.
fn is_covered_device(kind: FileType, path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_named = DEVICES.contains(&&*name)
        || NUMBERED_DEVICES
            .iter()
            .filter_map(|prefix| name.strip_prefix(prefix))
            .any(|number| number.starts_with(|c: char| c.is_ascii_digit()));
    let is_bsg = path.parent().is_some_and(|folder| folder.ends_with("bsg"));
    kind.is_block_device() || kind.is_char_device() && (is_named || is_bsg)
}

/// Devices by their names.
const DEVICES: [&str; 19] = [
    // Sockets between a virtual machine and its host.
    "vhost-vsock",
    "vmci",
    // Other channels to the host: of VirtualBox, Xen and Hyper-V.
    "vboxguest",
    "vboxuser",
    "privcmd",
    "xenbus",
    "evtchn",
    "gntdev",
    "gntalloc",
    "hv_kvp",
    "hv_vss",
    "hv_fcopy",
    // New disks: loop devices, and disks of other machines.
    "loop-control",
    "nvme-fabrics",
    // The kernel's log.
    "kmsg",
    // The processor's idle states.
    "cpu_dma_latency",
    // Input, as from a keyboard, for the terminals and windows outside.
    "uinput",
    "uhid",
    // Restarts the machine when it is no longer fed.
    "watchdog",
];
/// Devices by the beginning of their names, which a number follows:
///
/// - `sg0` (also `bsg/0:0:0:0`), `ng0n1`, `nvme0`: commands for a disk, of SCSI and NVMe
/// - `st0`, `nst0` (not rewound): tapes
/// - `mtd0`: flash memory, such as that of the firmware
/// - `vport1p1`: a channel to a virtual machine's host
/// - `event0`: input; what is written there counts as input, too
/// - `watchdog0`
/// - `ipmi0`: the machine's management controller (BMC)
const NUMBERED_DEVICES: [&str; 10] = [
    "sg", "ng", "nvme", "st", "nst", "mtd", "vport", "event", "watchdog", "ipmi",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_act_outside_are_recognized_in_any_directory() {
        let kind = fs::metadata("/dev/null").unwrap().file_type();
        for path in [
            "/dev/sg0",
            "/dev/nst0a",
            "/dev/ng0n1",
            "/dev/uinput",
            "/dev/bsg/0:0:0:0",
            "/srv/chroot/dev/bsg/0:0:0:0",
        ] {
            assert!(is_covered_device(kind, Path::new(path)), "{path}");
        }
        for path in ["/dev/null", "/dev/sgx", "/dev/tty0"] {
            assert!(!is_covered_device(kind, Path::new(path)), "{path}");
        }
    }
}

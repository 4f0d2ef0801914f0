//! Program files: this process's own, and the privileges that a file grants (set-user-ID, set-group-ID, file capabilities).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::getxattr;
use rustix::io::Errno;
use rustix::param::linux_execfn;
use rustix::process::{getegid, geteuid, getuid};

use crate::{NameCall, Result};

/// The path by which this process was executed (AT_EXECFN, getauxval(3)), absolute. An upgrade puts the next version of the
/// program there. Symbolic links are kept, because an upgrade may change them.
///
/// # Errors
///
/// The current directory does not exist any more, or, for a program that was executed by descriptor, readlink(2) on
/// /proc/self/exe fails.
pub fn path_executed() -> io::Result<PathBuf> {
    let path = Path::new(OsStr::from_bytes(linux_execfn().to_bytes()));
    let is_by_descriptor =
        path.starts_with("/proc") || path.starts_with("/dev") || path.as_os_str().is_empty();
    if is_by_descriptor {
        std::fs::read_link("/proc/self/exe")
    } else {
        std::path::absolute(path)
    }
}

/// How a process gains privileges by executing a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivilegeGain {
    /// None, or none that this process does not have already.
    Nothing,
    /// Another user (the set-user-ID bit).
    User,
    /// Another group (the set-group-ID bit).
    Group,
    /// Capabilities (capabilities(7), "File capabilities").
    Capabilities,
}

/// The privileges that this process would gain by executing `path`. Such programs ignore LD_PRELOAD (ld.so(8), "Secure-
/// execution mode"), and gain nothing under `no_new_privs`.
pub fn privilege_gain(path: &Path) -> Result<PrivilegeGain> {
    let file = path.metadata().call("stat(2)")?;
    // Without group execute permission, the set-group-ID bit meant mandatory locking, before Linux 5.15.
    let group_bits = SET_GROUP_ID | GROUP_EXECUTES;
    if file.mode() & SET_USER_ID != 0 && file.uid() != geteuid().as_raw() {
        return Ok(PrivilegeGain::User);
    }
    if file.mode() & group_bits == group_bits && file.gid() != getegid().as_raw() {
        return Ok(PrivilegeGain::Group);
    }
    // Root has all capabilities either way.
    if getuid().is_root() {
        return Ok(PrivilegeGain::Nothing);
    }
    match getxattr(path, "security.capability", &mut [0_u8; 0][..]) {
        Ok(0) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(PrivilegeGain::Nothing),
        Ok(_) => Ok(PrivilegeGain::Capabilities),
        Err(error) => Err(io::Error::from(error)).call("getxattr(security.capability)"),
    }
}

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;

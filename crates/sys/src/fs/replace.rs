//! Replaces files atomically: other programs may read them at any moment.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};

use crate::random;

/// Replaces the file of this name in an open directory (renameat(2)), so that no program reads half of it. The file gets
/// `permissions` regardless of the umask. Without `permissions`, the umask decides. A symbolic link of that name is replaced
/// itself.
///
/// # Errors
///
/// The file can't be created, written or renamed, and stays as it was; or there are no random numbers (getrandom(2)).
pub fn replace_file(
    directory: impl AsFd,
    name: &OsStr,
    content: &[u8],
    permissions: Option<Permissions>,
) -> io::Result<()> {
    let directory = directory.as_fd();
    let mut draft = OsString::from(name);
    // A random number, not the process id: a killed process may have left a draft, and in a container process ids repeat soon.
    draft.push(format!(
        ".{:016x}",
        random::words::<1>().map_err(|error| error.source)?[0]
    ));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    // The mode until fchmod(2), because the umask may let others read.
    let mode = match permissions {
        Some(_) => Mode::RUSR | Mode::WUSR,
        None => Mode::from_raw_mode(0o666),
    };
    let mut file = File::from(openat(directory, &draft, flags, mode)?);
    let written = permissions
        .map_or(Ok(()), |permissions| file.set_permissions(permissions))
        .and_then(|()| file.write_all(content))
        .and_then(|()| file.sync_all())
        .and_then(|()| Ok(renameat(directory, &draft, directory, name)?));
    if written.is_err() {
        let _ = unlinkat(directory, &draft, AtFlags::empty());
    }
    written
}

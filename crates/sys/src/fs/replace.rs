//! Replaces files, and renames drafts to new files, atomically: other programs may read them at any moment.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, openat, renameat, renameat_with, unlinkat,
};
use rustix::io::Errno;

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

/// Renames a file to a name that must be free, and so never gives it two names (renameat2(2), RENAME_NOREPLACE). Where the file
/// system lacks that (EINVAL; NFS), or a sandbox the call, link(2) and unlink(2): the file has two names for a moment.
///
/// # Errors
///
/// EEXIST where the name is taken; the file keeps its own then.
pub fn rename_to_free_name(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        renamed => Ok(renamed?),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

    use super::*;

    /// link(2) would be reported as the creation of a file.
    #[test]
    fn file_never_has_two_names_and_replaces_none() {
        let dir = tempfile::tempdir().unwrap();
        let [draft, free, taken] = ["draft", "free", "taken"].map(|name| dir.path().join(name));
        fs::write(&draft, "draft").unwrap();
        fs::write(&taken, "taken").unwrap();
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, dir.path(), WatchFlags::CREATE).unwrap();
        let error = rename_to_free_name(&draft, &taken).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&taken).unwrap(), "taken");
        rename_to_free_name(&draft, &free).unwrap();
        assert_eq!(fs::read_to_string(&free).unwrap(), "draft");
        let created = rustix::io::read(&watch, &mut [0; 4096]);
        assert_eq!(created, Err(Errno::AGAIN));
    }
}

//! Files: the operator's text files, watched directories, mounts, and files as such, whatever their paths are.

pub mod inotify;
pub mod mounts;
pub mod replace;
pub mod text_file;

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, Mode, OFlags, ResolveFlags, accessat, fstat, getxattr, openat, openat2,
    readlinkat, symlinkat,
};
use rustix::io::Errno;

use crate::process::confine::files;
use crate::process::user;
use crate::{NameCall, Result};

/// Opens a pipe without waiting for its other end, and makes reads and writes fail where they would wait (O_NONBLOCK, open(2)).
pub const NONBLOCK: i32 = OFlags::NONBLOCK.bits().cast_signed();

/// The identity of a file, whatever its paths are: its file system and its number there (inode(7)). Compare it only while the
/// file is open: once the file is deleted, another one may get the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The identity of an open file (fstat(2)).
    pub(crate) fn from_fd(file: impl AsFd) -> Result<Self> {
        let stat = fstat(file).call("fstat(2)")?;
        Ok(Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }
}

impl From<&Metadata> for FileId {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// Opens a file for fstat(2), for *at(2) calls, and for its path in /proc/self/fd, following symbolic links (O_PATH): no
/// permission over the file itself is needed, and nothing is done to it. The path may lead to another process's working
/// directory, too (/proc/PID/cwd).
pub fn open_path(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?.into())
}

/// As [`open_path`], for a path in which neither the file nor a directory is a symbolic link (openat2(2), since Linux 5.6).
///
/// # Errors
///
/// ELOOP where the path has a symbolic link; ENOSYS before Linux 5.6; else those of [`open_path`].
pub fn open_path_without_links(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    Ok(opened?.into())
}

/// Copies a symbolic link as such, to the same name in another directory. Both directories are opened by [`open_path`].
///
/// # Errors
///
/// EINVAL where `name` is no symbolic link; EEXIST, EACCES, ENOENT.
pub fn copy_symlink(from: &File, to: &File, name: &OsStr) -> io::Result<()> {
    let target = readlinkat(from, name, Vec::new())?;
    Ok(symlinkat(target, to, name)?)
}

/// Whether this process's real user may execute the file (access(2)). execvp(3) skips files that the user may not execute.
#[must_use]
pub fn is_executable(path: &Path) -> bool {
    accessat(CWD, path, Access::EXEC_OK, AtFlags::empty()).is_ok() && path.is_file()
}

/// Whether this process's real user may write to the file, or change the entries of the directory (access(2)).
#[must_use]
pub fn is_writable(path: &Path) -> bool {
    accessat(CWD, path, Access::WRITE_OK, AtFlags::empty()).is_ok()
}

/// Whether the file may have an access control list (acl(5)). The group's bits of its mode are then those of the list's mask:
/// the group itself may have less.
#[must_use]
pub fn may_have_acl(path: &Path) -> bool {
    let length = getxattr(path, "system.posix_acl_access", &mut [0_u8; 0][..]);
    !matches!(length, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

/// Checks that this process's real user may write to the file, or make it in its directory if it is missing. Changes nothing.
///
/// # Errors
///
/// EISDIR where the path is a directory; ENOENT, ENOTDIR, EACCES or EROFS of the file or its directory.
pub fn check_writable(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Ok(found) if found.is_dir() => Err(Errno::ISDIR.into()),
        Ok(_) => Ok(accessat(CWD, path, Access::WRITE_OK, AtFlags::empty())?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let access = Access::WRITE_OK | Access::EXEC_OK;
            Ok(accessat(CWD, directory_of(path), access, AtFlags::empty())?)
        }
        Err(error) => Err(error),
    }
}

/// The directory of a file: `.` if the path is only a name.
#[must_use]
pub fn directory_of(path: &Path) -> &Path {
    path.parent()
        .filter(|directory| !directory.as_os_str().is_empty())
        .unwrap_or_else(|| Path::new("."))
}

/// Explains the error of opening this file for appending, as [`text_file::explain_path`], or by confinement where that is the
/// cause: access(2), which Landlock does not restrict, allows the file.
pub fn explain_append(path: &Path, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied if files::is_confined() && check_writable(path).is_ok() => {
            io::Error::new(error.kind(), OUTSIDE)
        }
        _ => text_file::explain_path(path, error),
    }
}

/// Whether this process's user can put another file at this path, which has no symbolic link: because the user is root, or may
/// change a directory above the file.
#[must_use]
pub fn is_replaceable(path: &Path) -> bool {
    user::is_root() || path.ancestors().any(is_changeable_dir)
}

/// Whether this user may write to the directory, or owns it and so may change its mode.
fn is_changeable_dir(path: &Path) -> bool {
    let is_own = |metadata: Metadata| metadata.uid() == user::effective_uid();
    path.is_dir() && (is_writable(path) || path.metadata().is_ok_and(is_own))
}

/// The text of an error whose cause is confinement.
const OUTSIDE: &str = "its directory is not the one in which this process may write since its start, even under the same name: \
    restart the process, or `peername upgrade` it";

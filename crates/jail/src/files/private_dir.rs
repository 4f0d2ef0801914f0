//! A file system in memory for the jail's own files, on a directory that the host sees empty.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use peername_sys::fs::{may_have_acl, mounts};
use peername_sys::process::user;

use crate::JailError;

/// The directory. Dropping this does not remove it: it is in use for as long as the jail is, and [`PrivateDir::remove`] is for
/// a process outside.
#[derive(Clone, Debug)]
pub struct PrivateDir(PathBuf);

impl PrivateDir {
    /// Creates an empty directory in the system's directory for temporary files, which only this user can access. `tag` makes
    /// its name unique.
    pub fn create(tag: &str) -> Result<Self, JailError> {
        let parent = std::env::temp_dir();
        let path = parent.join(format!("peername-jail-{tag}"));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Self(path)),
            Err(failed) => Err(JailError::TemporaryDir { parent, failed }),
        }
    }

    /// Removes the directory, which is empty outside of the jail. To be called after the program's end: in the jail the files
    /// disappear with it.
    pub fn remove(&self) {
        let _ = fs::remove_dir(&self.0);
    }

    /// The interceptor's certificates.
    #[must_use]
    pub fn certificates(&self) -> PathBuf {
        self.file("certificates.pem")
    }

    /// All trusted authorities (PEM).
    #[must_use]
    pub fn bundle(&self) -> PathBuf {
        self.file("bundle.pem")
    }

    /// All trusted authorities, as a keystore for Java.
    #[must_use]
    pub fn truststore(&self) -> PathBuf {
        self.file("truststore.p12")
    }

    pub(super) fn resolv_conf(&self) -> PathBuf {
        self.file("resolv.conf")
    }

    pub(super) fn hosts(&self) -> PathBuf {
        self.file("hosts")
    }

    /// A file that is empty, and that only root can open.
    pub(super) fn empty_file(&self) -> PathBuf {
        self.file("empty-file")
    }

    pub(super) fn empty_dir(&self) -> PathBuf {
        self.file("empty")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Mounts the file system, with the empty file and directory in it.
    pub(super) fn mount(&self) -> Result<(), JailError> {
        let mounted = mounts::mount_tmpfs(&self.0, 0o755, MAX_BYTES);
        mounted.map_err(|source| JailError::cover(&self.0, source))?;
        self.write(&self.empty_file(), b"")?;
        self.set_mode(&self.empty_file(), 0o000)?;
        self.create_dir(&self.empty_dir())?;
        self.create_dir(&self.copies())
    }

    /// Covers the directory of the copies, once they are mounted: a path of `--hide` is hidden in the mounted copy only.
    pub(super) fn hide_copies(&self) -> Result<(), JailError> {
        let covered = mounts::bind_over(&self.copies(), &self.empty_dir());
        covered.map_err(|source| JailError::cover(&self.copies(), source))
    }

    /// Makes the file system read-only at its path and in every bind mount of it that is made later.
    pub(super) fn make_read_only(&self) -> Result<(), JailError> {
        mounts::make_read_only(&self.0).map_err(|source| JailError::cover(&self.0, source))
    }

    pub(super) fn write(&self, path: &Path, content: &[u8]) -> Result<(), JailError> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o444).open(path);
        file.and_then(|mut file| file.write_all(content))
            .map_err(|source| JailError::write(path, source))?;
        // Independent of the umask.
        self.set_mode(path, 0o444)
    }

    /// Writes a copy of one of the host's files, which the same users can read.
    pub(super) fn write_copy(
        &self,
        original: &Path,
        copy: &Path,
        content: &[u8],
    ) -> Result<(), JailError> {
        self.write(copy, content)?;
        self.copy_access(original, copy)
    }

    /// Gives the copy of a file or directory the owner and the mode of the original in the jail of root, which has every user. An
    /// ordinary user's has one, who can read the original. An access control list, which may deny a user what the mode allows to
    /// all, is not copied: only the owner has access then.
    pub(super) fn copy_access(&self, original: &Path, copy: &Path) -> Result<(), JailError> {
        if !user::is_root() {
            return Ok(());
        }
        let metadata = fs::metadata(original).map_err(|error| JailError::read(original, error))?;
        let mode = metadata.mode() & 0o777;
        // In a container, the owner or the group may be one that its user namespace does not have.
        let is_owner_kept = chown(copy, Some(metadata.uid()), Some(metadata.gid())).is_ok();
        let denied = match (may_have_acl(original), is_owner_kept) {
            (true, _) => 0o077,
            (false, false) => 0o070,
            (false, true) => 0,
        };
        self.set_mode(copy, mode & !denied)
    }

    /// The path of a copy of one of the host's files.
    pub(super) fn copy_path(&self, name: &str) -> PathBuf {
        self.copies().join(name)
    }

    /// Creates the directory for copies of one of the host's directories.
    pub(super) fn create_copy_dir(&self, name: &str) -> Result<PathBuf, JailError> {
        let path = self.copy_path(name);
        self.create_dir(&path)?;
        Ok(path)
    }

    fn copies(&self) -> PathBuf {
        self.file("copies")
    }

    fn create_dir(&self, path: &Path) -> Result<(), JailError> {
        let made = DirBuilder::new().mode(0o755).create(path);
        made.map_err(|source| JailError::write(path, source))?;
        self.set_mode(path, 0o755)
    }

    pub(super) fn set_mode(&self, path: &Path, mode: u32) -> Result<(), JailError> {
        let set = fs::set_permissions(path, Permissions::from_mode(mode));
        set.map_err(|source| JailError::write(path, source))
    }
}

/// Bundles of several hundred authorities take less than a megabyte each; a directory of the host may have many.
const MAX_BYTES: usize = 64 << 20;

//! The store of an authority: a directory with one file for key and certificate, so that the two can't get separated, and
//! one for the certificates of its predecessors.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use peername_sys::fs::replace::rename_to_free_name;
use peername_sys::fs::text_file;
use peername_sys::process::user;

use super::error::CaError;

/// The file of key and certificate in the directory of an authority.
pub(super) fn authority_file(dir: &Path) -> PathBuf {
    dir.join("authority.pem")
}

/// The directory of an authority, which no other user can write.
pub(super) struct CaStore<'a>(&'a Path);

impl<'a> CaStore<'a> {
    /// Opens the directory.
    ///
    /// # Errors
    ///
    /// It is missing or no directory, or another user owns it or can write it.
    pub(super) fn open(dir: &'a Path) -> Result<Self, CaError> {
        let store = Self(dir);
        let metadata = match fs::metadata(dir) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(CaError::Absent { path: store.path() });
            }
            Err(error) => return Err(failed("stat(2)", dir)(error)),
        };
        if !metadata.is_dir() {
            return Err(CaError::NotADirectory {
                path: dir.to_owned(),
            });
        }
        check_owner(dir, &metadata)?;
        let mode = metadata.mode() & PERMISSIONS;
        if mode & 0o022 == 0 {
            return Ok(store);
        }
        let path = dir.to_owned();
        let is_of_the_host = metadata.uid() == 0 && !store.path().exists();
        Err(if mode & STICKY != 0 || is_of_the_host {
            CaError::Shared { path }
        } else {
            CaError::WritableByOthers { path, mode }
        })
    }

    /// Opens the directory, and creates it and its parents if they are missing.
    pub(super) fn create(dir: &'a Path) -> Result<Self, CaError> {
        let mut builder = DirBuilder::new();
        if let Some(parent) = dir.parent() {
            builder
                .mode(0o700)
                .recursive(true)
                .create(parent)
                .map_err(failed("mkdir(2)", parent))?;
        }
        match builder.mode(0o700).recursive(false).create(dir) {
            // The umask may have removed even the owner's bits.
            Ok(()) => fs::set_permissions(dir, Permissions::from_mode(0o700))
                .map_err(failed("chmod(2)", dir))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("mkdir(2)", dir)(error)),
        }
        Self::open(dir)
    }

    /// The file of key and certificate.
    pub(super) fn path(&self) -> PathBuf {
        authority_file(self.0)
    }

    /// The file of the predecessors' certificates.
    pub(super) fn previous_path(&self) -> PathBuf {
        self.0.join("previous.pem")
    }

    /// Reads key and certificate.
    ///
    /// # Errors
    ///
    /// The file is missing, or other users can read it. A file of root may be readable by its group, unless this process runs
    /// as root.
    pub(super) fn read_authority(&self) -> Result<String, CaError> {
        let path = self.path();
        let file = match text_file::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(CaError::Absent { path });
            }
            Err(error) => return Err(failed("open(2)", &path)(error)),
        };
        // fstat(2) of the open file: another file may have the name by now.
        let metadata = file.metadata().map_err(failed("fstat(2)", &path))?;
        check_owner(&path, &metadata)?;
        let mode = metadata.mode() & PERMISSIONS;
        if mode & forbidden_mode_bits(metadata.uid()) != 0 {
            return Err(CaError::ReadableByOthers { path, mode });
        }
        text_file::read_opened(&file).map_err(failed("read(2)", &path))
    }

    /// Reads the certificates of predecessors; empty if there are none.
    pub(super) fn read_previous(&self) -> Result<String, CaError> {
        let path = self.previous_path();
        match text_file::open(&path) {
            Ok(file) => text_file::read_opened(&file).map_err(failed("read(2)", &path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(failed("open(2)", &path)(error)),
        }
    }

    /// Stores a new authority atomically, and only if there is none.
    pub(super) fn put(&self, text: &str) -> Result<(), CaError> {
        let (path, draft) = (self.path(), self.write_draft(text)?);
        // A jail refuses an authority with two names.
        if let Err(error) = rename_to_free_name(&draft, &path) {
            let _ = fs::remove_file(&draft);
            return Err(match error.kind() {
                io::ErrorKind::AlreadyExists => CaError::Exists { path },
                _ => failed("renameat2(2)", &path)(error),
            });
        }
        self.sync()
    }

    /// Replaces a file of the store atomically.
    pub(super) fn replace(&self, path: &Path, text: &str) -> Result<(), CaError> {
        let draft = self.write_draft(text)?;
        if let Err(error) = fs::rename(&draft, path) {
            // It may have the key.
            let _ = fs::remove_file(&draft);
            return Err(failed("rename(2)", path)(error));
        }
        self.sync()
    }

    /// Locks other rotations out while the result lives.
    pub(super) fn lock(&self) -> Result<File, CaError> {
        let dir = File::open(self.0).map_err(failed("open(2)", self.0))?;
        dir.lock().map_err(failed("flock(2)", self.0))?;
        Ok(dir)
    }

    /// Writes a temporary file and syncs it to the disk. Other users can't open it at any moment: O_CREAT with O_EXCL and
    /// mode 0600.
    fn write_draft(&self, text: &str) -> Result<PathBuf, CaError> {
        // It is O_EXCL that guarantees a unique name; the suffix does not.
        let suffix = RandomState::new().hash_one(());
        let path = self.0.join(format!(".draft-{suffix:016x}"));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open(2)", &path))?;
        let written = file
            // The umask may have removed even the owner's bits.
            .set_permissions(Permissions::from_mode(0o600))
            .and_then(|()| file.write_all(text.as_bytes()))
            .and_then(|()| file.sync_all());
        if let Err(error) = written {
            // The disk may be full, and half a key is of no use.
            let _ = fs::remove_file(&path);
            return Err(failed("write(2)", &path)(error));
        }
        Ok(path)
    }

    /// Syncs the directory, so that a rename survives a power failure.
    fn sync(&self) -> Result<(), CaError> {
        File::open(self.0)
            .and_then(|dir| dir.sync_all())
            .map_err(failed("fsync(2)", self.0))
    }
}

fn check_owner(path: &Path, metadata: &fs::Metadata) -> Result<(), CaError> {
    let (owner, us) = (metadata.uid(), user::effective_uid());
    if owner == us || owner == 0 {
        return Ok(());
    }
    Err(CaError::OwnedByAnother {
        path: path.to_owned(),
        owner,
        us,
    })
}

/// The bits of the mode that the key's file must not have. A service manager that stores the key as root can let another user
/// read it only through a group: Kubernetes mounts a Secret with the group of `fsGroup`.
fn forbidden_mode_bits(owner: u32) -> u32 {
    if owner == 0 && user::effective_uid() != 0 {
        0o037
    } else {
        0o077
    }
}

fn failed(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CaError {
    let path = path.to_owned();
    move |source| CaError::Io { call, path, source }
}

/// The bit of directories in which each user may make files: /tmp (S_ISVTX).
const STICKY: u32 = 0o1000;
/// The bits of a file's mode without its type.
const PERMISSIONS: u32 = 0o7777;

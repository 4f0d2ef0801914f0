//! Where an authority is kept: a directory with one file for key and certificate, so that the two can't come
//! apart, and one for the certificates of its predecessors.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use peername_sys::fs::text_file;
use peername_sys::process::user;

use super::{Error, profile};

/// A directory that nobody else can write.
pub(super) struct Kept<'a>(&'a Path);

impl<'a> Kept<'a> {
    pub(super) fn at(dir: &'a Path) -> Result<Self, Error> {
        let kept = Self(dir);
        let about = match fs::metadata(dir) {
            Ok(about) => about,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::Absent { path: kept.path() });
            }
            Err(error) => return Err(failed("stat(2)", dir)(error)),
        };
        check_owner(dir, &about)?;
        let mode = about.mode() & 0o7777;
        if mode & 0o022 != 0 {
            return Err(Error::WritableByOthers {
                path: dir.to_owned(),
                mode,
            });
        }
        Ok(kept)
    }

    /// Makes the directory, and those above it, if they are not there.
    pub(super) fn make(dir: &'a Path) -> Result<Self, Error> {
        let mut builder = DirBuilder::new();
        if let Some(above) = dir.parent() {
            let made = builder.mode(0o700).recursive(true).create(above);
            made.map_err(failed("mkdir(2)", above))?;
        }
        match builder.mode(0o700).recursive(false).create(dir) {
            // The umask may have taken even the owner's bits.
            Ok(()) => fs::set_permissions(dir, Permissions::from_mode(0o700))
                .map_err(failed("chmod(2)", dir))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("mkdir(2)", dir)(error)),
        }
        Self::at(dir)
    }

    /// Where key and certificate are.
    pub(super) fn path(&self) -> PathBuf {
        self.0.join("authority.pem")
    }

    /// Where the certificates of predecessors are.
    pub(super) fn previous_path(&self) -> PathBuf {
        self.0.join("previous.pem")
    }

    /// Key and certificate, if nobody else can have read them.
    pub(super) fn authority(&self) -> Result<String, Error> {
        let path = self.path();
        let file = match text_file::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::Absent { path });
            }
            Err(error) => return Err(failed("open(2)", &path)(error)),
        };
        // Of the file that is open, not of whatever has the name by then.
        let about = file.metadata().map_err(failed("fstat(2)", &path))?;
        check_owner(&path, &about)?;
        let mode = about.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(Error::ReadableByOthers { path, mode });
        }
        read(file).map_err(failed("read(2)", &path))
    }

    /// The certificates of predecessors; empty if there are none.
    pub(super) fn previous(&self) -> Result<String, Error> {
        let path = self.previous_path();
        match text_file::open(&path) {
            Ok(file) => read(file).map_err(failed("read(2)", &path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(failed("open(2)", &path)(error)),
        }
    }

    /// Puts a new authority there, whole or not at all, and only if there is none.
    pub(super) fn put(&self, text: &str) -> Result<(), Error> {
        let (path, draft) = (self.path(), self.draft(text)?);
        // Unlike rename(2), link(2) fails if the name is taken.
        let linked = fs::hard_link(&draft, &path);
        let removed = fs::remove_file(&draft);
        match linked {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Exists { path });
            }
            Err(error) => return Err(failed("link(2)", &path)(error)),
        }
        removed.map_err(failed("unlink(2)", &draft))?;
        self.settle()
    }

    pub(super) fn replace(&self, text: &str) -> Result<(), Error> {
        self.rename_to(&self.path(), text)
    }

    pub(super) fn replace_previous(&self, text: &str) -> Result<(), Error> {
        self.rename_to(&self.previous_path(), text)
    }

    fn rename_to(&self, path: &Path, text: &str) -> Result<(), Error> {
        let draft = self.draft(text)?;
        fs::rename(&draft, path).map_err(failed("rename(2)", path))?;
        self.settle()
    }

    /// Keeps other rotations out while the result lives.
    pub(super) fn lock(&self) -> Result<File, Error> {
        let dir = File::open(self.0).map_err(failed("open(2)", self.0))?;
        dir.lock().map_err(failed("flock(2)", self.0))?;
        Ok(dir)
    }

    /// A file under a name that nobody looks for, written through to the disk. It is never open to others,
    /// not even for a moment: O_CREAT with O_EXCL and mode 0600.
    fn draft(&self, text: &str) -> Result<PathBuf, Error> {
        let path = self.0.join(format!(
            ".draft-{}",
            profile::tag(&profile::random_serial())
        ));
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open(2)", &path))?;
        let written = file
            // The umask may have taken even the owner's bits.
            .set_permissions(Permissions::from_mode(0o600))
            .and_then(|()| file.write_all(text.as_bytes()))
            .and_then(|()| file.sync_all());
        if let Err(error) = written {
            // It may be that the disk is full: half a key is of no use to anybody.
            let _ = fs::remove_file(&path);
            return Err(failed("write(2)", &path)(error));
        }
        Ok(path)
    }

    /// What was renamed or linked survives a power failure.
    fn settle(&self) -> Result<(), Error> {
        let dir = File::open(self.0).and_then(|dir| dir.sync_all());
        dir.map_err(failed("fsync(2)", self.0))
    }
}

fn check_owner(path: &Path, about: &fs::Metadata) -> Result<(), Error> {
    let (owner, us) = (about.uid(), user::effective_uid());
    if owner == us || owner == 0 {
        return Ok(());
    }
    Err(Error::OwnedByAnother {
        path: path.to_owned(),
        owner,
        us,
    })
}

/// An authority is a few kilobytes; whatever is longer is something else.
fn read(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

fn failed(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { call, path, source }
}

/// Octets that are read of a file.
const LONGEST: u64 = 256 * 1024;

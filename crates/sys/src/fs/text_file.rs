//! Text files that an operator writes: configurations and lists.
//!
//! A reload reads them while connections are served, so reading must neither block nor grow without bound: a FIFO never
//! ends, and `/dev/zero` has no length.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::string::FromUtf8Error;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::process::confine::files;
use crate::process::user::effective_uid;

/// Reads a regular file of at most 4 MiB. Symbolic links are followed.
///
/// # Errors
///
/// Those of [`open`] and read(2); [`io::ErrorKind::FileTooLarge`]; [`io::ErrorKind::InvalidData`] for a file that is not UTF-8.
/// No error quotes the file's content.
pub fn read(path: &Path) -> io::Result<String> {
    read_opened(&open(path)?).inspect_err(count_transient)
}

/// The number of reads of this thread that have failed for a reason that may pass without a change of the file, such as
/// EMFILE, ENOMEM or EIO.
pub fn transient_failures() -> u64 {
    TRANSIENT_FAILURES.get()
}

/// Reads an opened file as [`read`] does.
pub fn read_opened(file: &File) -> io::Result<String> {
    read_at_most(file, MAX_LEN)
}

/// The files that this process has opened with [`open`]. A reload opens them again.
pub fn opened() -> Vec<PathBuf> {
    let opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    opened.iter().cloned().collect()
}

/// Opens a regular file for reading, without blocking.
///
/// # Errors
///
/// Those of open(2) and fstat(2); [`io::ErrorKind::InvalidInput`] for anything but a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    open_regular(path).inspect_err(count_transient)
}

fn open_regular(path: &Path) -> io::Result<File> {
    let file = open_at(CWD, path, OFlags::empty())
        .map_err(|error| explain_path(path, files::explain(path, error)))?;
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    opened.insert(path.to_owned());
    drop(opened);
    Ok(file)
}

/// Opens a file as [`open`] does, by its name in an open directory and without following a symbolic link.
///
/// # Errors
///
/// Those of [`open`]; [`io::ErrorKind::InvalidInput`] for a symbolic link.
pub fn open_in(directory: impl AsFd, name: &OsStr) -> io::Result<File> {
    open_at(directory, Path::new(name), OFlags::NOFOLLOW).map_err(|error| {
        if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
            let why = "a symbolic link: name the file that it leads to";
            return io::Error::new(io::ErrorKind::InvalidInput, why);
        }
        with_user(error)
    })
}

/// Adds the user of this process to EACCES: the file may be readable for the user who has written the command line.
fn with_user(error: io::Error) -> io::Error {
    // An error without a number is explained already: its cause is confinement, not the user.
    let is_from_kernel = error.raw_os_error().is_some();
    if is_from_kernel && error.kind() == io::ErrorKind::PermissionDenied {
        let why = format!("{error} for the user with id {}", effective_uid());
        return io::Error::new(error.kind(), why);
    }
    error
}

/// Explains the error of a system call that takes this path: what is missing (ENOENT), or the user of this process, and the
/// command that shows the permissions of the path (EACCES).
pub fn explain_path(path: &Path, error: io::Error) -> io::Error {
    if error.raw_os_error().is_none() {
        return error;
    }
    let kind = error.kind();
    let why = match kind {
        io::ErrorKind::PermissionDenied => format!(
            "{}; `namei -l {}` shows who may",
            with_user(error),
            path.display()
        ),
        io::ErrorKind::NotFound => match missing_parent(path) {
            Some(parent) => format!("no such directory: {}", parent.display()),
            None => "no such file".to_owned(),
        },
        _ => return error,
    };
    io::Error::new(kind, why)
}

/// The directory that the path names, if it does not exist.
fn missing_parent(path: &Path) -> Option<&Path> {
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty())?;
    matches!(parent.try_exists(), Ok(false)).then_some(parent)
}

fn open_at(directory: impl AsFd, path: &Path, more: OFlags) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | more;
    let file = File::from(openat(directory, path, flags, Mode::empty())?);
    let file_type = file.metadata()?.file_type();
    if !file_type.is_file() {
        let found = if file_type.is_dir() {
            "a directory"
        } else if file_type.is_fifo() {
            "a pipe"
        } else {
            "a device"
        };
        let why = format!("not a regular file, but {found}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(file)
}

fn read_at_most(file: &File, max_len: u64) -> io::Result<String> {
    let mut content = Vec::new();
    // The file may grow while it is read, so its length is no bound.
    let len = file
        .take(max_len.saturating_add(1))
        .read_to_end(&mut content)?;
    if u64::try_from(len).is_ok_and(|len| len > max_len) {
        let why = format!("larger than {max_len} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    String::from_utf8(content).map_err(|error| not_utf8(&error))
}

/// Names the line in which a file is not UTF-8.
fn not_utf8(error: &FromUtf8Error) -> io::Error {
    let valid = error.utf8_error().valid_up_to();
    let before = error.as_bytes().iter().take(valid);
    let line = 1 + before.filter(|byte| **byte == b'\n').count();
    let why = format!("line {line}: not UTF-8; save the file as UTF-8");
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn count_transient(error: &io::Error) {
    if is_transient(error) {
        TRANSIENT_FAILURES.set(TRANSIENT_FAILURES.get() + 1);
    }
}

/// Whether the error is transient. A permanent one has no error number (it is about the file's kind or content), or is about
/// the path.
fn is_transient(error: &io::Error) -> bool {
    let of_the_path = [
        Errno::NOENT,
        Errno::NOTDIR,
        Errno::ACCESS,
        Errno::PERM,
        Errno::LOOP,
        Errno::NAMETOOLONG,
        Errno::NXIO,
        Errno::NODEV,
    ];
    Errno::from_io_error(error).is_some_and(|errno| !of_the_path.contains(&errno))
}

thread_local! {
    /// A counter beside the results, because many readers turn their errors into text.
    static TRANSIENT_FAILURES: Cell<u64> = const { Cell::new(0) };
}

/// A global list, so that no file that an option names can be missing in it.
static OPENED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Maximum size in bytes: more than a list of a hundred thousand networks takes.
const MAX_LEN: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bounded_regular_files_are_read() {
        for path in ["/dev/zero", "/dev", "/dev/tty", "/proc/self/fd"] {
            assert!(open(Path::new(path)).is_err(), "{path}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "0123456789").unwrap();
        let read_at_most = |max_len| super::read_at_most(&open(file.path()).unwrap(), max_len);
        assert_eq!(read_at_most(10).unwrap(), "0123456789");
        let kind = |result: io::Result<String>| result.map_err(|error| error.kind());
        assert_eq!(kind(read_at_most(9)), Err(io::ErrorKind::FileTooLarge));
        std::fs::write(&file, b"# a\n\xff").unwrap();
        let error = read_at_most(9).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(
            error.to_string().starts_with("line 2: not UTF-8"),
            "{error}"
        );
    }

    #[test]
    fn error_names_what_is_missing() {
        for (path, why) in [
            ("/nonexistent/list", "no such directory: /nonexistent"),
            ("/nonexistent", "no such file"),
            ("nonexistent", "no such file"),
        ] {
            let error = open(Path::new(path)).unwrap_err();
            assert_eq!(error.to_string(), why, "{path}");
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn transient_failures_are_counted() {
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EIO] {
            assert!(is_transient(&io::Error::from_raw_os_error(code)), "{code}");
        }
        for path in ["/nonexistent", "/dev/null/list", "/dev/tty", "/dev"] {
            assert!(!is_transient(&open(Path::new(path)).unwrap_err()), "{path}");
        }
        let before = transient_failures();
        // Nothing is mapped at address 0: EIO.
        read(Path::new("/proc/self/mem")).unwrap_err();
        assert!(transient_failures() > before);
    }
}

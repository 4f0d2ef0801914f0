//! Files that an operator writes: configurations and lists.
//!
//! A reload reads them while connections are served, so none of them may block or grow without end: a FIFO has no end, and
//! `/dev/zero` has no length.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// The whole text of a regular file of at most `max_len` octets. Links are followed.
///
/// # Errors
///
/// Those of open(2), fstat(2) and read(2); [`io::ErrorKind::InvalidInput`] for what is no regular file, found out without
/// blocking; [`io::ErrorKind::FileTooLarge`]; [`io::ErrorKind::InvalidData`] for what is not UTF-8. None quotes the
/// file.
pub fn read(path: &Path, max_len: u64) -> io::Result<String> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    read_open(&file, max_len)
}

fn read_open(file: &File, max_len: u64) -> io::Result<String> {
    if !file.metadata()?.is_file() {
        let why = "not a regular file (a directory, a pipe or a device)";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut text = String::new();
    // It may grow while it is read.
    let len = file
        .take(max_len.saturating_add(1))
        .read_to_string(&mut text)?;
    if u64::try_from(len).is_ok_and(|len| len > max_len) {
        let why = format!("larger than {max_len} octets");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_a_reasonable_size() {
        for path in ["/dev/zero", "/dev", "/dev/tty", "/proc/self/fd"] {
            assert!(read(Path::new(path), 10).is_err(), "{path}");
        }
        let path = std::env::temp_dir().join(format!("peername-text-{}", std::process::id()));
        std::fs::write(&path, "0123456789").unwrap();
        assert_eq!(read(&path, 10).unwrap(), "0123456789");
        let kind = |result: io::Result<String>| result.map_err(|error| error.kind());
        assert_eq!(kind(read(&path, 9)), Err(io::ErrorKind::FileTooLarge));
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(kind(read(&path, 9)), Err(io::ErrorKind::InvalidData));
        std::fs::remove_file(&path).unwrap();
    }
}

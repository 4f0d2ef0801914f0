//! The host's Unix sockets that have a path. A network namespace isolates those with an abstract name only: a program that
//! reaches the file connects to the process behind it, such as a container engine, which starts programs outside of the jail.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The paths on which processes of this network namespace receive, by any kind of Unix socket, as far as this user reaches
/// them, without symbolic links. To be called before the namespace is left.
///
/// Those that a process has bound by a relative path, and those of processes in other network namespaces, such as
/// containers, are not found.
///
/// # Errors
///
/// `/proc/net/unix` can't be read.
pub fn find() -> io::Result<BTreeSet<PathBuf>> {
    let table = fs::read("/proc/net/unix")?;
    let paths = table.split(|&byte| byte == b'\n').filter_map(bound_path);
    Ok(paths
        .filter(|path| is_socket(path))
        .filter_map(|path| path.canonicalize().ok())
        .collect())
}

/// The path in a line of the table: what follows its seventh column (proc(5)). Columns are padded, and a path may contain
/// spaces.
fn bound_path(line: &[u8]) -> Option<&Path> {
    let mut rest = line;
    for _ in 0..7 {
        rest = rest.trim_ascii_start();
        let end = rest.iter().position(|&byte| byte == b' ')?;
        rest = rest.get(end..)?;
    }
    let path = Path::new(OsStr::from_bytes(rest.get(1..)?));
    path.is_absolute().then_some(path)
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use super::*;

    #[test]
    fn sockets_with_a_path_are_found() {
        let dir = std::env::temp_dir().join(format!("peername-jail-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let (stream, datagram, closed) =
            (dir.join("a b"), dir.join("datagram"), dir.join("closed"));
        let _stream = UnixListener::bind(&stream).unwrap();
        let _datagram = UnixDatagram::bind(&datagram).unwrap();
        drop(UnixListener::bind(&closed).unwrap());
        let found = find().unwrap();
        assert!(
            found.contains(&stream) && found.contains(&datagram),
            "{found:?}"
        );
        assert!(!found.contains(&closed));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn lines_without_an_absolute_path_are_skipped() {
        let line = b"0000000012345678: 00000002 00000000 00010000 0001 01   120 ";
        let with = |path: &str| [&line[..], path.as_bytes()].concat();
        assert_eq!(bound_path(&with("/run/a b")), Some(Path::new("/run/a b")));
        for none in ["", "@abstract", "relative"] {
            assert_eq!(bound_path(&with(none)), None, "{none}");
        }
        assert_eq!(
            bound_path(b"Num       RefCount Protocol Flags    Type St Inode Path"),
            None
        );
    }
}

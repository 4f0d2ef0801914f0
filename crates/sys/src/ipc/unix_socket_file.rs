//! Unix listening sockets, and the files that they are bound to.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, connect, getpeername,
    getsockname, socket_with,
};

use crate::event::wait_readable;
use crate::fs::FileId;

/// A Unix listener. Dropping it removes its file, if this process owns the path.
#[derive(Debug)]
pub struct UnixSocketFile {
    socket: UnixListener,
    path: Arc<SocketPath>,
}

/// The path of a Unix listener.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    /// The socket's file. Another process may have put its own at the path since; that one is not removed.
    file: Option<FileId>,
    /// Whether this process removes it at its end.
    is_owner: AtomicBool,
}

impl SocketPath {
    /// Makes this process the one that removes the path.
    pub fn take_ownership(&self) {
        self.is_owner.store(true, Relaxed);
    }

    /// Leaves the path to another process: this one does not remove it.
    pub fn give_up_ownership(&self) {
        self.is_owner.store(false, Relaxed);
    }

    /// Removes the path, unless it was left to another process, or has another process's file.
    pub fn remove(&self) {
        if self.is_owner.swap(false, Relaxed) && file_at(&self.path) == self.file {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The identity of the file at a path; `None` if there is none, or it can't be read.
fn file_at(path: &Path) -> Option<FileId> {
    Some(FileId::from(&fs::symlink_metadata(path).ok()?))
}

impl UnixSocketFile {
    /// Listens at `path` with mode 0660. A socket that a dead process left there is replaced.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AddrInUse`] when a process listens there, [`ErrorKind::AlreadyExists`] when the path is another kind of
    /// file, and whatever bind(2), chmod(2) or rename(2) reports.
    pub fn bind(path: &Path) -> io::Result<Self> {
        check_replaceable(path)?;
        // Bound under another name until its mode is right: from bind(2) on, other users could connect.
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{}", std::process::id()));
        let temporary = PathBuf::from(temporary);
        let _ = fs::remove_file(&temporary);
        let socket = UnixListener::bind(&temporary)?;
        let file = file_at(&temporary);
        let ready = socket
            .set_nonblocking(true)
            .and_then(|()| fs::set_permissions(&temporary, fs::Permissions::from_mode(MODE)))
            .and_then(|()| fs::rename(&temporary, path));
        if let Err(error) = ready {
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        Ok(Self {
            socket,
            path: Arc::new(SocketPath {
                path: path.to_owned(),
                file,
                is_owner: AtomicBool::new(true),
            }),
        })
    }

    /// Takes over the listener of another process at this path. That process still removes the path. What is at the path now counts
    /// as the listener's file: the kernel does not tell which file a socket has.
    pub fn adopt(path: PathBuf, socket: OwnedFd) -> Self {
        Self {
            socket: socket.into(),
            path: Arc::new(SocketPath {
                file: file_at(&path),
                path,
                is_owner: AtomicBool::new(false),
            }),
        }
    }

    /// The listening socket.
    pub fn socket(&self) -> &UnixListener {
        &self.socket
    }

    /// The path, and whether this process removes it.
    pub fn path(&self) -> &Arc<SocketPath> {
        &self.path
    }

    /// Returns the socket, and leaves the path to another process.
    pub fn into_socket(self) -> io::Result<OwnedFd> {
        self.path.give_up_ownership();
        self.socket.as_fd().try_clone_to_owned()
    }
}

impl AsFd for UnixSocketFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for UnixSocketFile {
    fn drop(&mut self) {
        self.path.remove();
    }
}

/// Whether connections to `path` arrive at this socket, which a process has bound by [`UnixSocketFile::bind`], and not at one
/// that has replaced it. No other process may accept from it. Connects once, and leaves that connection in the backlog, without
/// a byte.
pub fn is_reached_at(socket: &UnixListener, path: &Path) -> bool {
    is_bound_at(socket, path)
        && wait_readable([socket.as_fd()], Some(Duration::ZERO)).unwrap_or(false)
}

/// Whether the socket at `path` has the name of this one, which has the id of the process that has bound it by
/// [`UnixSocketFile::bind`]. Connects once, without a byte. Other processes may accept from the socket.
pub fn is_bound_at(socket: impl AsFd, path: &Path) -> bool {
    let Some(bound) = name_of(getsockname(socket).ok()) else {
        return false;
    };
    match connect_at_once(path) {
        // A connection has the name of the socket that it arrived at.
        Ok(probe) => name_of(getpeername(&probe).ok().flatten()).as_ref() == Some(&bound),
        // The backlog is full, or this process may not connect.
        Err(Errno::AGAIN | Errno::ACCESS) => bound.with_extension("") == path,
        Err(_) => false,
    }
}

fn name_of(addr: Option<SocketAddrAny>) -> Option<PathBuf> {
    let addr = SocketAddrUnix::try_from(addr?).ok()?;
    let name = OsStr::from_bytes(addr.path_bytes()?);
    Some(PathBuf::from(name))
}

/// Connects without waiting for an entry of the backlog.
fn connect_at_once(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Refuses a path at which there is a file other than a socket.
///
/// # Errors
///
/// [`ErrorKind::AlreadyExists`], with what to do.
pub fn refuse_other_file(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            Err(io::Error::new(ErrorKind::AlreadyExists, OTHER_FILE))
        }
        _ => Ok(()),
    }
}

/// Checks that nothing is at the path, or a socket on which no process listens.
fn check_replaceable(path: &Path) -> io::Result<()> {
    refuse_other_file(path)?;
    match UnixStream::connect(path) {
        Err(error) if is_absent(&error) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(ErrorKind::AddrInUse.into()),
    }
}

/// Whether the error of connect(2) means that no process listens at the path.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused | ErrorKind::NotFound
    )
}

const OTHER_FILE: &str = "there is another file, not a socket; remove it or use another path";
/// Readable and writable by owner and group.
const MODE: u32 = 0o660;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_is_reached_at_its_path_until_another_replaces_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let bind_as = |process: &str| {
            let temporary = dir.path().join(format!("a.sock.{process}"));
            let socket = UnixListener::bind(&temporary).unwrap();
            fs::rename(&temporary, &path).unwrap();
            socket
        };
        let first = bind_as("7");
        assert!(is_reached_at(&first, &path));
        let second = bind_as("8");
        assert!(is_reached_at(&second, &path) && !is_reached_at(&first, &path));
        // Another process may accept the connection at once.
        drop((second.accept().unwrap(), second.accept().unwrap()));
        assert!(is_bound_at(&second, &path) && !is_bound_at(&first, &path));
        rustix::net::listen(&second, 0).unwrap();
        let _waiting: Vec<_> = std::iter::from_fn(|| connect_at_once(&path).ok()).collect();
        assert!(is_reached_at(&second, &path), "the backlog is full");
        fs::remove_file(&path).unwrap();
        assert!(!is_reached_at(&second, &path));
    }

    #[test]
    fn stale_socket_is_replaced_and_other_files_and_live_sockets_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let kind = |result: io::Result<UnixSocketFile>| result.map(drop).map_err(|e| e.kind());

        drop(UnixListener::bind(&path).unwrap());
        let live = UnixSocketFile::bind(&path).expect("a stale socket is replaced");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            MODE
        );
        assert_eq!(kind(UnixSocketFile::bind(&path)), Err(ErrorKind::AddrInUse));
        drop(live);
        assert!(!path.exists());

        let replaced = UnixSocketFile::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let other = UnixSocketFile::bind(&path).unwrap();
        drop(replaced);
        assert!(path.exists(), "the socket of another process");
        drop(other);
        assert!(!path.exists());

        fs::write(&path, "text").unwrap();
        assert_eq!(
            kind(UnixSocketFile::bind(&path)),
            Err(ErrorKind::AlreadyExists)
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    }
}

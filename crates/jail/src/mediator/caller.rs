//! The thread that makes a call: its directories and its identity.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use peername_sys::fs::open_path;
use peername_sys::process::caps::{CapabilitySet, set_effective};
use peername_sys::process::user::act_as::{act_as, enter_directories};
use peername_sys::process::user::task_status::TaskStatus;
use peername_sys::seccomp::Notification;
use peername_sys::socket::addressed;
use peername_sys::{Result, SyscallError};

use super::Failed;

/// A thread whose call is pending: it neither changes nor exits meanwhile, unless the call is over.
#[derive(Debug)]
pub(super) struct Caller {
    tid: u32,
    status: TaskStatus,
}

impl Caller {
    pub(super) fn of(call: &Notification) -> io::Result<Self> {
        Ok(Self {
            tid: call.tid,
            status: TaskStatus::read(call.tid)?,
        })
    }

    /// Whether a signal waits for the end of the call.
    pub(super) fn is_signalled(&self) -> bool {
        self.status.is_signalled
    }

    /// The path, with the caller's number where it begins with `/proc/self` and the like, which is another process for the
    /// mediator.
    pub(super) fn own_path(&self, path: &Path) -> PathBuf {
        let process = PathBuf::from(format!("/proc/{}", self.status.process));
        let thread = process.join(format!("task/{}", self.tid));
        let own = [
            ("/proc/self", process.clone()),
            ("/proc/thread-self", thread),
            ("/dev/fd", process.join("fd")),
        ];
        own.iter()
            .find_map(|(prefix, own)| Some(own.join(path.strip_prefix(prefix).ok()?)))
            .unwrap_or_else(|| path.to_owned())
    }

    /// Runs `work` with the caller's identity.
    pub(super) fn act<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let result = act_as(&self.status, work);
        set_effective(IDLE)?;
        result
    }

    fn directory(&self, name: &str) -> io::Result<File> {
        open_path(Path::new(&format!("/proc/{}/{name}", self.tid)))
    }
}

/// This process's own root directory, to which it returns.
#[derive(Debug)]
pub(super) struct Directories {
    root: File,
}

impl Directories {
    pub(super) fn current() -> Result<Self> {
        let root = open_path(Path::new("/")).map_err(|source| SyscallError {
            call: "open(/)",
            source,
        })?;
        Ok(Self { root })
    }

    /// Opens a file as the caller would, following symbolic links. The descriptor is for fstat(2) and for its path in
    /// /proc/self/fd (O_PATH).
    pub(super) fn open(&self, caller: &Caller, path: &Path) -> std::result::Result<File, Failed> {
        self.within(caller, path, || open_path(path))
    }

    /// Binds the socket as the caller would. Returns the file that it is bound to.
    pub(super) fn bind(
        &self,
        caller: &Caller,
        socket: impl AsFd,
        path: &Path,
    ) -> std::result::Result<File, Failed> {
        let address = unix_address(path)?;
        self.within(caller, path, || addressed::bind(&socket, &address))?;
        set_effective(CapabilitySet::NET_ADMIN)?;
        let file = addressed::bound_file(&socket);
        set_effective(IDLE)?;
        Ok(file?.into())
    }

    /// Runs `work`, which uses the path, in the caller's directories and with its identity.
    fn within<T>(
        &self,
        caller: &Caller,
        path: &Path,
        work: impl FnOnce() -> io::Result<T>,
    ) -> std::result::Result<T, Failed> {
        let root = caller.directory("root")?;
        let working = match path.is_absolute() {
            true => root.try_clone()?,
            false => caller.directory("cwd")?,
        };
        // The caller is in these already, whoever may search them.
        set_effective(CapabilitySet::SYS_CHROOT | CapabilitySet::DAC_READ_SEARCH)?;
        let entered = enter_directories(root, working);
        let result = entered.and_then(|()| caller.act(work));
        // Without its own root, the mediator would take the caller's /proc for the kernel's.
        set_effective(CapabilitySet::SYS_CHROOT | CapabilitySet::DAC_READ_SEARCH)
            .and_then(|()| enter_directories(&self.root, &self.root))
            .and_then(|()| set_effective(IDLE))
            .map_err(Failed::Mediator)?;
        Ok(result??)
    }
}

/// The path of an address that is a Unix socket's with a path (unix(7)).
pub(super) fn unix_path(address: &[u8]) -> Option<&Path> {
    let (family, path) = address.split_first_chunk::<2>()?;
    let is_unix = i32::from(u16::from_ne_bytes(*family)) == AF_UNIX;
    let end = path.iter().position(|&byte| byte == 0);
    let path = path.get(..end.unwrap_or(path.len()))?;
    // What begins with a zero is an abstract name, of the jail's network.
    (is_unix && !path.is_empty()).then(|| Path::new(OsStr::from_bytes(path)))
}

/// The address of a path, ENAMETOOLONG for one that does not fit.
pub(super) fn unix_address(path: &Path) -> io::Result<Vec<u8>> {
    let path = path.as_os_str().as_bytes();
    if path.len() > MAX_PATH {
        return Err(peername_sys::Errno::NAMETOOLONG.into());
    }
    let family = (AF_UNIX as u16).to_ne_bytes();
    Ok([&family, path, &[0][..usize::from(path.len() < MAX_PATH)]].concat())
}

/// What the mediator needs between calls: the descriptors and the memory of the program.
const IDLE: CapabilitySet = CapabilitySet::SYS_PTRACE;
const AF_UNIX: i32 = 1;
/// Of `sun_path` in `struct sockaddr_un`.
const MAX_PATH: usize = 108;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_from_other_addresses() {
        assert_eq!(unix_path(b"\x01\0/run/a\0b"), Some(Path::new("/run/a")));
        assert_eq!(unix_path(b"\x01\0a"), Some(Path::new("a")));
        for other in [
            &b""[..],
            b"\x01",
            b"\x01\0",
            b"\x01\0\0abstract",
            b"\x02\0/run/a",
        ] {
            assert_eq!(unix_path(other), None, "{other:?}");
        }
        let address = unix_address(Path::new("/run/a")).unwrap();
        assert_eq!(address, b"\x01\0/run/a\0");
        assert!(unix_address(Path::new(&"x".repeat(109))).is_err());
        assert_eq!(
            unix_address(Path::new(&"x".repeat(108))).unwrap().len(),
            110
        );
    }
}

//! The thread that makes a call: its directories and its identity.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use peername_sys::fs::open_path;
use peername_sys::process::caps::{CapabilitySet, set_effective};
use peername_sys::process::namespace::UserNamespace;
use peername_sys::process::user::act_as::{act_as, enter_directories};
use peername_sys::process::user::task_status::TaskStatus;
use peername_sys::seccomp::Notification;
use peername_sys::socket::raw_address;
use peername_sys::{Result, SyscallError};

use super::call_error::{CallError, CallResult};

/// A thread whose call is pending: it neither changes nor exits meanwhile, unless the call is over.
#[derive(Debug)]
pub(super) struct Caller {
    tid: u32,
    status: TaskStatus,
}

/// The directories of a caller by which it finds a path.
#[derive(Debug)]
pub(super) struct CallerDirectories {
    root: File,
    /// For a relative path only: the working directory may not be searchable any more.
    working: Option<File>,
}

impl CallerDirectories {
    /// Opens the directories by the thread's id, which another thread may have if the call is over: check afterwards.
    pub(super) fn open(call: &Notification, path: &Path) -> io::Result<Self> {
        let open_link = |name| open_path(Path::new(&format!("/proc/{}/{name}", call.tid)));
        Ok(Self {
            root: open_link("root")?,
            working: path.is_relative().then(|| open_link("cwd")).transpose()?,
        })
    }
}

impl Caller {
    /// Reads everything by the thread's id, which another thread may have if the call is over: check afterwards. Capabilities
    /// in a user namespace below the program's do not count: they hold for fewer users.
    pub(super) fn read(call: &Notification, program: &UserNamespace) -> io::Result<Self> {
        let mut status = TaskStatus::read(call.tid)?;
        if !program.has_process(call.tid)? {
            status.capabilities = CapabilitySet::empty();
        }
        Ok(Self {
            tid: call.tid,
            status,
        })
    }

    /// Whether a signal waits for the end of the call.
    pub(super) fn has_signal(call: &Notification) -> bool {
        TaskStatus::read(call.tid).is_ok_and(|status| status.is_signalled)
    }

    /// Replaces `/proc/self` and the like at the beginning of a path by the directory with the caller's id: to the mediator
    /// they mean the mediator.
    pub(super) fn resolve_proc_self(&self, path: &Path) -> PathBuf {
        let process = PathBuf::from(format!("/proc/{}", self.status.process));
        let thread = process.join(format!("task/{}", self.tid));
        let replacements = [
            ("/proc/self", process.clone()),
            ("/proc/thread-self", thread),
            ("/dev/fd", process.join("fd")),
        ];
        replacements
            .iter()
            .find_map(|(prefix, own)| Some(own.join(path.strip_prefix(prefix).ok()?)))
            .unwrap_or_else(|| path.to_owned())
    }

    /// Runs `work` with the caller's identity.
    pub(super) fn run_as<T>(&self, work: impl FnOnce() -> io::Result<T>) -> CallResult<T> {
        let result = self.assume_identity(work);
        set_effective(IDLE_CAPABILITIES).map_err(CallError::Mediator)?;
        result
    }

    /// As [`Caller::run_as`], but leaves the effective capabilities changed.
    fn assume_identity<T>(&self, work: impl FnOnce() -> io::Result<T>) -> CallResult<T> {
        match act_as(&self.status, work) {
            Ok(result) => Ok(result?),
            // The mediator must not go on with the identity of another process.
            Err(error) if error.is_lasting => Err(CallError::Mediator(error.source)),
            Err(error) => Err(error.source.into()),
        }
    }
}

/// This process's own root directory, to which it returns.
#[derive(Debug)]
pub(super) struct RootDirectory {
    root: File,
}

impl RootDirectory {
    pub(super) fn current() -> Result<Self> {
        let root = open_path(Path::new("/")).map_err(|source| SyscallError {
            call: "open(/)",
            source,
        })?;
        Ok(Self { root })
    }

    /// Opens a file as the caller would, following symbolic links. The descriptor is for fstat(2) and for its path in
    /// /proc/self/fd (O_PATH).
    pub(super) fn open(
        &self,
        caller: &Caller,
        directories: &CallerDirectories,
        path: &Path,
    ) -> CallResult<File> {
        self.run_in_directories(caller, directories, || open_path(path))
    }

    /// Binds the socket as the caller would. Returns the file that it is bound to; `None` without a free descriptor.
    pub(super) fn bind(
        &self,
        caller: &Caller,
        directories: &CallerDirectories,
        socket: impl AsFd,
        path: &Path,
    ) -> CallResult<Option<File>> {
        let address = unix_address(path)?;
        self.run_in_directories(caller, directories, || raw_address::bind(&socket, &address))?;
        // The socket is bound now, so a failure to find its file must not fail the call.
        set_effective(CapabilitySet::NET_ADMIN).map_err(CallError::Mediator)?;
        let file = raw_address::bound_file(&socket);
        set_effective(IDLE_CAPABILITIES).map_err(CallError::Mediator)?;
        Ok(file.ok().map(File::from))
    }

    /// Runs `work` in the caller's directories and with its identity.
    fn run_in_directories<T>(
        &self,
        caller: &Caller,
        directories: &CallerDirectories,
        work: impl FnOnce() -> io::Result<T>,
    ) -> CallResult<T> {
        let working = directories.working.as_ref().map(File::as_fd);
        // The caller is in these directories already, with or without the right to search them.
        set_effective(CapabilitySet::SYS_CHROOT | CapabilitySet::DAC_READ_SEARCH)?;
        let entered = enter_directories(&directories.root, working).map_err(CallError::from);
        let result = entered.and_then(|()| caller.assume_identity(work));
        // Without its own root, the mediator would take the caller's /proc for the kernel's.
        set_effective(CapabilitySet::SYS_CHROOT | CapabilitySet::DAC_READ_SEARCH)
            .and_then(|()| enter_directories(&self.root, None))
            .and_then(|()| set_effective(IDLE_CAPABILITIES))
            .map_err(CallError::Mediator)?;
        result
    }
}

/// The address of a Unix socket (unix(7)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UnixName {
    /// A name that begins with a zero byte: it belongs to the jail's network namespace.
    Abstract,
    Path(PathBuf),
}

impl UnixName {
    /// Returns `None` if the address is not the name of a Unix socket, or the socket is of another family: the kernel judges
    /// such an address.
    pub(super) fn from_address(address: &[u8], socket: impl AsFd) -> Option<Self> {
        let name = Self::parse(address)?;
        raw_address::is_unix(socket).then_some(name)
    }

    fn parse(address: &[u8]) -> Option<Self> {
        let (family, name) = address.split_first_chunk::<2>()?;
        let is_unix = i32::from(u16::from_ne_bytes(*family)) == AF_UNIX;
        if !is_unix || name.is_empty() || name.len() > MAX_PATH {
            return None;
        }
        let end = name.iter().position(|&byte| byte == 0);
        let path = name.get(..end.unwrap_or(name.len())).unwrap_or_default();
        Some(match path {
            [] => Self::Abstract,
            path => Self::Path(Path::new(OsStr::from_bytes(path)).to_owned()),
        })
    }
}

/// Builds the address of a path. ENAMETOOLONG if the path does not fit.
pub(super) fn unix_address(path: &Path) -> io::Result<Vec<u8>> {
    let path = path.as_os_str().as_bytes();
    if path.len() > MAX_PATH {
        return Err(peername_sys::Errno::NAMETOOLONG.into());
    }
    let mut address = (AF_UNIX as u16).to_ne_bytes().to_vec();
    address.extend(path);
    // A path of the greatest length has no zero after it (unix(7)).
    if path.len() < MAX_PATH {
        address.push(0);
    }
    Ok(address)
}

/// The mediator's effective capabilities between calls: they give access to the descriptors and the memory of the program.
pub(super) const IDLE_CAPABILITIES: CapabilitySet = CapabilitySet::SYS_PTRACE;
const AF_UNIX: i32 = 1;
/// Bytes of `sun_path` in `struct sockaddr_un`.
const MAX_PATH: usize = 108;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_unix_sockets_are_told_from_other_addresses() {
        let path = |text: &str| Some(UnixName::Path(PathBuf::from(text)));
        assert_eq!(UnixName::parse(b"\x01\0/run/a\0b"), path("/run/a"));
        assert_eq!(UnixName::parse(b"\x01\0a"), path("a"));
        let name = UnixName::parse(b"\x01\0\0abstract");
        assert_eq!(name, Some(UnixName::Abstract));
        let long = [&b"\x01\0"[..], &[b'x'; 109]].concat();
        for other in [&b""[..], b"\x01", b"\x01\0", b"\x02\0/run/a", &long] {
            assert_eq!(UnixName::parse(other), None, "{other:?}");
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

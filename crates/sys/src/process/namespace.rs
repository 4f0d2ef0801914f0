//! Network and user namespaces: a private network for the calling thread, as root or as an unprivileged user.
//!
//! A network namespace belongs to a thread; a user namespace can be entered only by a process with one thread. Children
//! that the thread starts afterwards inherit both.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::{NameCall, Result};

/// A network namespace, held open: it exists as long as this value or a process inside it.
#[derive(Debug)]
pub struct NetworkNamespace(OwnedFd);

impl NetworkNamespace {
    /// Opens the namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// ENOENT without /proc; EMFILE or ENFILE.
    pub fn current() -> Result<Self> {
        let file =
            fs::File::open("/proc/thread-self/ns/net").call("open(/proc/thread-self/ns/net)")?;
        Ok(Self(file.into()))
    }

    /// Opens the namespace of a process.
    ///
    /// # Errors
    ///
    /// ENOENT where there is none, EACCES for another user's process.
    pub fn of_process(pid: u32) -> Result<Self> {
        let file = fs::File::open(format!("/proc/{pid}/ns/net")).call("open(/proc/PID/ns/net)")?;
        Ok(Self(file.into()))
    }

    /// Makes a new, empty network namespace (loopback down, no routes) and moves the calling thread
    /// into it. Needs CAP_SYS_ADMIN in the thread's user namespace.
    ///
    /// # Errors
    ///
    /// EPERM without the capability; ENOSPC beyond `user.max_net_namespaces`.
    pub fn unshare() -> Result<Self> {
        // SAFETY: NEWNET does not affect the descriptor table, the only hazard of `unshare_unsafe`.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.call("unshare(CLONE_NEWNET)")?;
        Self::current()
    }

    /// Moves the calling thread into this namespace (setns(2)).
    ///
    /// # Errors
    ///
    /// EPERM without CAP_SYS_ADMIN.
    pub fn enter(&self) -> Result<()> {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .call("setns(CLONE_NEWNET)")
    }
}

/// Moves this process, which must have one thread only, into a new user namespace in which it is
/// root. An unprivileged user may do so where the distribution allows it (user_namespaces(7)).
///
/// # Errors
///
/// EINVAL with several threads; EPERM or ENOSPC where it is not allowed.
pub fn become_root_of_new_user_namespace() -> Result<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    // SAFETY: NEWUSER leaves the descriptor table alone.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }.call("unshare(CLONE_NEWUSER)")?;
    write("/proc/self/uid_map", &format!("0 {} 1", uid.as_raw()))?;
    // Since Linux 3.19 a group map may be written without privilege only after this.
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/gid_map", &format!("0 {} 1", gid.as_raw()))
}

/// Moves this process, which must have one thread only, into a new user namespace in which it is the same
/// user with every capability, until it executes another program. An unprivileged user may do so where the
/// distribution allows it (user_namespaces(7)).
///
/// # Errors
///
/// Those of [`become_root_of_new_user_namespace`].
pub fn become_capable_in_new_user_namespace() -> Result<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    // SAFETY: NEWUSER leaves the descriptor table alone.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }.call("unshare(CLONE_NEWUSER)")?;
    let (uid, gid) = (uid.as_raw(), gid.as_raw());
    write("/proc/self/uid_map", &format!("{uid} {uid} 1"))?;
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/gid_map", &format!("{gid} {gid} 1"))
}

/// Lets any program of the calling thread's network namespace listen on ports below 1024
/// (`ip_unprivileged_port_start`, since Linux 4.11). Needs CAP_NET_ADMIN there.
///
/// # Errors
///
/// EACCES or EPERM without the capability; EROFS or ENOENT without a writable /proc/sys.
pub fn allow_unprivileged_ports() -> Result<()> {
    write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")
}

fn write(path: &'static str, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error: io::Error| crate::SyscallError {
        call: path,
        source: error,
    })
}

//! Network, mount and user namespaces: a private network for the calling thread, as root or as an unprivileged user.
//!
//! A network namespace belongs to a thread; a user namespace can be entered only by a process with one thread. Children
//! that the thread starts afterwards inherit both.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::caps::{CapabilitySet, is_effective};
use super::fork::{fork, set_parent_death_signal, wait_exit};
use crate::error::checked;
use crate::fs::FileId;
use crate::{NameCall, Result};

/// A network namespace, held open: it exists as long as this value or a process inside it.
#[derive(Debug)]
pub struct NetworkNamespace(OwnedFd);

impl NetworkNamespace {
    /// Opens the namespace of the calling thread.
    pub fn current() -> Result<Self> {
        let file =
            fs::File::open("/proc/thread-self/ns/net").call("open(/proc/thread-self/ns/net)")?;
        Ok(Self(file.into()))
    }

    /// Opens the namespace of a thread. Check afterwards that the thread is still the same: it may have exited before this call
    /// and its id been reused.
    ///
    /// # Errors
    ///
    /// ENOENT once the thread has exited; EACCES without the rights of ptrace(2).
    pub fn of_thread(tid: u32) -> Result<Self> {
        let file = fs::File::open(format!("/proc/{tid}/ns/net"));
        Ok(Self(file.call("open(/proc/TID/ns/net)")?.into()))
    }

    /// Opens the namespace that a socket belongs to (SIOCGSKNS), which may be another than that of its process. `None` without
    /// CAP_NET_ADMIN in that namespace.
    ///
    /// # Errors
    ///
    /// EMFILE or ENFILE without a free descriptor.
    pub fn of_socket(socket: impl AsFd) -> Result<Option<Self>> {
        // SAFETY: the command takes no argument.
        let opened = checked(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCGSKNS) });
        match opened.call("ioctl(SIOCGSKNS)") {
            // SAFETY: the kernel has just made this descriptor for us alone.
            Ok(fd) => Ok(Some(Self(unsafe { OwnedFd::from_raw_fd(fd) }))),
            Err(error) if error.is_permission() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the calling thread is in this namespace.
    pub fn is_current(&self) -> Result<bool> {
        let current = Self::current()?;
        Ok(FileId::from_fd(&self.0)? == FileId::from_fd(&current.0)?)
    }

    /// The user namespace that owns this one (NS_GET_USERNS, ioctl_nsfs(2), since Linux 4.9).
    ///
    /// # Errors
    ///
    /// EPERM where the owner is neither the caller's user namespace nor below it.
    pub fn owner(&self) -> Result<UserNamespace> {
        UserNamespace::of_namespace(&self.0, NS_GET_USERNS).call("ioctl(NS_GET_USERNS)")
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
    let (uid, gid) = own_ids();
    unshare_users(UnshareFlags::empty())?;
    map_ids(&format!("0 {uid} 1"), &format!("0 {gid} 1"))
}

/// Moves this process, which must have one thread only, into a new user namespace in which it is the same
/// user with every capability, until it executes another program. An unprivileged user may do so where the
/// distribution allows it (user_namespaces(7)).
pub fn become_capable_in_new_user_namespace() -> Result<()> {
    unshare_with_own_ids(UnshareFlags::empty())
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

/// The namespaces that [`unshare_with_new_user_namespace`] creates beside the user namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unshared {
    /// A mount namespace, and one of System V IPC and POSIX message queues.
    MountsAndIpc,
    /// A mount namespace and an empty network namespace.
    MountsAndNetwork,
}

/// Moves this process, which must have one thread only, into a new user namespace and into namespaces that belong to it
/// ([`Unshared`]). It has every capability over them until it executes another program, and as root also afterwards.
///
/// Users and groups keep their numbers. With CAP_SETUID and CAP_SETGID, all that the old namespace has are mapped; else only
/// those of this process, and then setgroups(2) is denied. In the new mount namespace, mounts of the old one can't be unmounted
/// or uncovered (mount_namespaces(7), "locked"). Later mounts in the old one propagate to the new one, but not back.
///
/// # Errors
///
/// EBUSY or EINVAL with several threads; EPERM, EACCES or ENOSPC where user namespaces are not allowed.
pub fn unshare_with_new_user_namespace(others: Unshared) -> Result<()> {
    let flags = match others {
        Unshared::MountsAndIpc => UnshareFlags::NEWNS | UnshareFlags::NEWIPC,
        Unshared::MountsAndNetwork => UnshareFlags::NEWNS | UnshareFlags::NEWNET,
    };
    let (users, groups) = (
        IdMap::read("/proc/self/uid_map")?,
        IdMap::read("/proc/self/gid_map")?,
    );
    let may_map_all = is_effective(CapabilitySet::SETUID | CapabilitySet::SETGID);
    if may_map_all && (users.has_several_ids() || groups.has_several_ids()) {
        return unshare_and_map_all(flags, &users, &groups);
    }
    unshare_with_own_ids(flags)
}

/// Moves this process into a new user namespace, in which its user and group keep their numbers, and into those of `others`.
fn unshare_with_own_ids(others: UnshareFlags) -> Result<()> {
    let (uid, gid) = own_ids();
    unshare_users(others)?;
    map_ids(&format!("{uid} {uid} 1"), &format!("{gid} {gid} 1"))
}

/// The effective user and group, which a new user namespace hides until they are mapped.
fn own_ids() -> (u32, u32) {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    (uid.as_raw(), gid.as_raw())
}

/// Moves this process into a new user namespace, and into those of `others`: mount, IPC and network namespaces.
fn unshare_users(others: UnshareFlags) -> Result<()> {
    // SAFETY: none of the flags affects the descriptor table.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | others) }.call("unshare(CLONE_NEWUSER)")
}

/// Writes the maps of this process's new user namespace, without privilege over the old one.
fn map_ids(uid_map: &str, gid_map: &str) -> Result<()> {
    write("/proc/self/uid_map", uid_map)?;
    // Since Linux 3.19 a group map may be written without privilege only after this.
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/gid_map", gid_map)
}

/// As [`unshare_with_own_ids`], but maps all users and groups, by a child that stays in the old namespace, because only there
/// does a process have the privilege.
fn unshare_and_map_all(others: UnshareFlags, users: &IdMap, groups: &IdMap) -> Result<()> {
    let (mut reader, mut writer) = io::pipe().call("pipe2(2)")?;
    let process = std::process::id();
    let child = fork(|| {
        let waited = set_parent_death_signal(Signal::TERM)
            .map_err(|error| error.source)
            .and_then(|()| reader.read_exact(&mut [0]));
        let write_map =
            |file: &str, map: &IdMap| fs::write(format!("/proc/{process}/{file}"), &map.0);
        if waited.and_then(|()| write_map("uid_map", users)).is_err() {
            1
        } else if write_map("gid_map", groups).is_err() {
            GID_MAP_FAILED
        } else {
            0
        }
    })?;
    let unshared = unshare_users(others);
    // A byte, because the child has the write end, too, and so would wait for ever for the end of the pipe.
    let released = writer.write_all(&[0]).call("write(2)");
    let exit = wait_exit(child)?;
    unshared.and(released)?;
    let call = match exit.code() {
        Some(0) => return Ok(()),
        Some(code) if code == i32::from(GID_MAP_FAILED) => "write(/proc/PID/gid_map)",
        _ => "write(/proc/PID/uid_map)",
    };
    Err(io::Error::from_raw_os_error(libc::EPERM)).call(call)
}

/// The exit code of the child that can't write the map of groups.
const GID_MAP_FAILED: u8 = 2;

/// The lines of a map (user_namespaces(7)) that gives each number of this namespace the same number in a new one.
struct IdMap(String);

impl IdMap {
    fn read(path: &'static str) -> Result<Self> {
        let map = fs::read_to_string(path).call(path)?;
        let identity = map.lines().filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (inside, count) = (words.next()?, words.nth(1)?);
            Some(format!("{inside} {inside} {count}\n"))
        });
        Ok(Self(identity.collect()))
    }

    fn has_several_ids(&self) -> bool {
        self.0.lines().count() > 1 || !self.0.trim_end().ends_with(" 1")
    }
}

/// A user namespace, held open.
#[derive(Debug)]
pub struct UserNamespace(fs::File);

impl UserNamespace {
    /// Opens the namespace of a process.
    ///
    /// # Errors
    ///
    /// EACCES without the rights of ptrace(2), which end at the user namespace of the caller; ENOENT or ESRCH where the
    /// process has exited.
    pub fn of_process(pid: u32) -> Result<Self> {
        let file = fs::File::open(format!("/proc/{pid}/ns/user"));
        file.map(Self).call("open(/proc/PID/ns/user)")
    }

    /// Moves this process, which must have one thread only, into this namespace (setns(2)), in which it has every capability
    /// until it executes another program.
    ///
    /// # Errors
    ///
    /// EINVAL where the process is in this namespace already, or has several threads; EPERM without CAP_SYS_ADMIN in it, which
    /// its owner has in the parent namespace.
    pub fn enter(&self) -> Result<()> {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::User))
            .call("setns(CLONE_NEWUSER)")
    }

    /// Whether this is `ancestor` itself, or below it (NS_GET_PARENT, ioctl_nsfs(2), since Linux 4.9).
    #[must_use]
    pub fn is_within(self, ancestor: &Self) -> bool {
        std::iter::successors(Some(self), Self::parent).any(|namespace| namespace.is_same(ancestor))
    }

    /// The child of `parent` that is this namespace or above it; `None` if this one is not below `parent`.
    #[must_use]
    pub fn child_of(self, parent: &Self) -> Option<Self> {
        let mut child = self;
        loop {
            let above = child.parent()?;
            if above.is_same(parent) {
                return Some(child);
            }
            child = above;
        }
    }

    /// Whether both are the same namespace.
    fn is_same(&self, other: &Self) -> bool {
        match (self.0.metadata(), other.0.metadata()) {
            (Ok(own), Ok(other)) => FileId::from(&own) == FileId::from(&other),
            _ => false,
        }
    }

    /// Whether a process is in this namespace itself, rather than in one below.
    pub fn has_process(&self, pid: u32) -> io::Result<bool> {
        // One system call for the process; to open its namespace would take two more.
        let namespace = fs::metadata(format!("/proc/{pid}/ns/user"))?;
        Ok(FileId::from(&namespace) == FileId::from(&self.0.metadata()?))
    }

    /// The parent; `None` where that is above the namespace of this process.
    fn parent(&self) -> Option<Self> {
        Self::of_namespace(&self.0, NS_GET_PARENT).ok()
    }

    /// The user namespace that another namespace belongs to, by this command of ioctl_nsfs(2).
    fn of_namespace(namespace: impl AsFd, command: libc::Ioctl) -> io::Result<Self> {
        // SAFETY: the commands take no argument.
        let fd = checked(unsafe { libc::ioctl(namespace.as_fd().as_raw_fd(), command) })?;
        // SAFETY: the kernel has just made this descriptor for us alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }.into()))
    }
}

/// From `linux/nsfs.h`.
const NS_GET_PARENT: libc::Ioctl = 0xb702;
const NS_GET_USERNS: libc::Ioctl = 0xb701;
/// `linux/sockios.h`, since Linux 4.10.
const SIOCGSKNS: libc::Ioctl = 0x894c;

fn write(path: &'static str, text: &str) -> Result<()> {
    fs::write(path, text).call(path)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn only_a_missing_permission_hides_the_namespace_of_a_socket() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        if let Some(namespace) = NetworkNamespace::of_socket(&socket).unwrap() {
            assert!(namespace.is_current().unwrap());
        }
        let (no_socket, _writer) = io::pipe().unwrap();
        let error = NetworkNamespace::of_socket(&no_socket).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOTTY));
    }
}

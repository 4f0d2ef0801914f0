//! Making a call with another thread's identity: the kernel decides as it would for that thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::process::{chroot, fchdir};
use rustix::thread::{self, CapabilitySet};

use super::task_status::TaskStatus;
use crate::error::checked;
use crate::process::caps::set_effective;
use crate::{NameCall, SyscallError};

/// Why [`act_as`] has failed.
#[derive(Debug)]
pub struct ActError {
    /// The call that failed.
    pub source: SyscallError,
    /// Whether this process still has the other identity.
    pub is_lasting: bool,
}

/// Runs `work` with the user, group, groups and umask of a thread, and with those of its capabilities that are in this
/// process's permitted set. Afterwards the effective capabilities are undefined: call [`set_effective`].
///
/// Only for processes with a single thread. If the identity differs, the permitted set has to have CAP_SETUID and CAP_SETGID.
///
/// # Errors
///
/// EINVAL where an id is not mapped in this user namespace, EPERM without the capabilities. If [`ActError::is_lasting`] is
/// false, `work` has not run.
pub fn act_as<T>(status: &TaskStatus, work: impl FnOnce() -> T) -> Result<T, ActError> {
    let own = Identity::current().map_err(ActError::transient)?;
    let wanted = Identity {
        user: status.user,
        group: status.group,
        groups: status.groups.clone(),
    };
    let umask = set_umask(status.umask);
    let result = wanted.assume(&own, status.capabilities).map(|()| work());
    set_umask(umask);
    own.resume(&wanted).map_err(|source| ActError {
        source,
        is_lasting: true,
    })?;
    result.map_err(ActError::transient)
}

impl ActError {
    fn transient(source: SyscallError) -> Self {
        Self {
            source,
            is_lasting: false,
        }
    }
}

/// Changes the root directory of this process (chroot(2)), and its working directory to `working` (fchdir(2)), or else to the
/// new root. Needs CAP_SYS_CHROOT.
pub fn enter_directories(root: impl AsFd, working: Option<BorrowedFd<'_>>) -> crate::Result<()> {
    fchdir(root).call("fchdir(2)")?;
    chroot(".").call("chroot(2)")?;
    working.map_or(Ok(()), fchdir).call("fchdir(2)")
}

/// The effective user and group, and the supplementary groups.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    user: u32,
    group: u32,
    groups: Vec<u32>,
}

impl Identity {
    fn current() -> crate::Result<Self> {
        let groups = rustix::process::getgroups().call("getgroups(2)")?;
        Ok(Self {
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
            groups: groups
                .into_iter()
                .map(rustix::process::Gid::as_raw)
                .collect(),
        })
    }

    /// Changes from `own` to this identity, with these capabilities.
    fn assume(&self, own: &Self, capabilities: CapabilitySet) -> crate::Result<()> {
        if self != own {
            set_effective(CapabilitySet::all())?;
            self.set_groups(own)?;
            self.set_user(own)?;
        }
        set_effective(capabilities)
    }

    /// Changes from `assumed` back to this identity.
    fn resume(&self, assumed: &Self) -> crate::Result<()> {
        if self == assumed {
            return Ok(());
        }
        set_effective(CapabilitySet::all())?;
        // The user first: root regains its capabilities by that.
        self.set_user(assumed)?;
        set_effective(CapabilitySet::all())?;
        self.set_groups(assumed)
    }

    fn set_groups(&self, from: &Self) -> crate::Result<()> {
        if self.groups != from.groups {
            let groups: Vec<_> = self
                .groups
                .iter()
                .map(|&id| thread::Gid::from_raw(id))
                .collect();
            thread::set_thread_groups(&groups).call("setgroups(2)")?;
        }
        if self.group != from.group {
            set_effective_id(libc::SYS_setresgid, self.group).call("setresgid(2)")?;
        }
        Ok(())
    }

    fn set_user(&self, from: &Self) -> crate::Result<()> {
        if self.user != from.user {
            set_effective_id(libc::SYS_setresuid, self.user).call("setresuid(2)")?;
        }
        Ok(())
    }
}

/// Sets this thread's effective id by setresuid(2) or setresgid(2); the real and the saved one stay.
fn set_effective_id(call: libc::c_long, id: u32) -> io::Result<()> {
    const UNCHANGED: u32 = u32::MAX;
    // SAFETY: the calls take integers and touch no memory.
    checked(unsafe { libc::syscall(call, UNCHANGED, id, UNCHANGED) }).map(drop)
}

fn set_umask(mask: u32) -> u32 {
    // SAFETY: the call takes an integer, and always succeeds.
    unsafe { libc::umask(mask) }
}

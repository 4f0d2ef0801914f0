//! Supervising another program's system calls (seccomp_unotify(2), since Linux 5.0).
//!
//! [`install`] puts a filter on the calling thread. Every program that the thread executes or starts inherits the filter. From
//! then on their accept(2), accept4(2), listen(2) and getpeername(2) wait until the holder of the [`NotificationListener`]
//! answers, and getsockname(2) too if [requested](Getsockname). The program need not cooperate: static binaries and runtimes
//! with system calls of their own are intercepted like any other.

mod bpf;
mod call;
mod deny_io_uring;
mod filter;
#[cfg(target_arch = "x86_64")]
mod i386;
mod jail;
mod listener;
mod thread_cache;

use crate::{NameCall, Result};
use listener::listener_from;

pub use call::{AddressBuffer, Endpoint, NotifiedCall};
pub use deny_io_uring::deny_io_uring;
pub use filter::{Bypass, Getsockname};
pub use jail::{
    AddressArgument, MediatedCall, Mediation, confine_calls_with_mediator,
    confine_calls_without_mediator,
};
pub use listener::{
    AddFdOutcome, Notification, NotificationListener, NotificationRecord, WaitOutcome,
    has_no_process, is_listener,
};
pub use thread_cache::ThreadCache;

/// Whether `no_new_privs` had to be set, so that the program can't gain privileges by execve(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoNewPrivs {
    /// The flag was not changed.
    Unchanged,
    /// The flag was set (prctl(2)).
    Set,
}

/// Installs the filter on this thread, irrevocably.
///
/// Needs CAP_SYS_ADMIN or `no_new_privs`; sets the latter only if the capability is missing. io_uring_setup(2)
/// fails with ENOSYS from now on, because a connection accepted through a ring would bypass the filter.
///
/// # Errors
///
/// EBUSY when an inherited filter, such as a container manager's, has a listener already: there can be only one.
/// EINVAL before Linux 5.0.
pub fn install(
    getsockname: Getsockname,
    bypass: Option<&Bypass>,
) -> Result<(NotificationListener, NoNewPrivs)> {
    let program = filter::program(getsockname, bypass);
    match install_once(&program) {
        Err(error) if error.is_permission() => {
            rustix::thread::set_no_new_privs(true).call("prctl(PR_SET_NO_NEW_PRIVS)")?;
            Ok((install_once(&program)?, NoNewPrivs::Set))
        }
        installed => Ok((installed?, NoNewPrivs::Unchanged)),
    }
}

fn install_once(program: &[libc::sock_filter]) -> Result<NotificationListener> {
    const CALL: &str = "seccomp(SECCOMP_FILTER_FLAG_NEW_LISTENER)";
    let fd = bpf::install(program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER).call(CALL)?;
    listener_from(fd)
}

/// Allows `tracer`, which is not an ancestor, to access this process's memory and descriptors, as Yama requires
/// (PR_SET_PTRACER; `kernel.yama.ptrace_scope` = 1). execve(2) keeps the permission; children don't inherit it.
pub fn allow_ptrace_by(tracer: u32) {
    // Fails only without Yama (EINVAL), where the permission is not needed.
    // SAFETY: the call takes integers and touches no memory.
    let _ = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(tracer)) };
}

//! The system calls of a confined command.
//!
//! The lists contain what glibc and musl call in the operations that peername uses, older and newer variants alike, so that
//! an update of the C library does not kill the process. Calls that only report something are listed generously. Calls that
//! start a program, reach another process, change the system or the credentials of this process are not in any list.

use peername_sys::process::confine::system_calls::{AllowedCalls, SocketFamilies, Sysno};

use super::needs::Needs;

pub(super) fn allowed(needs: &Needs) -> AllowedCalls {
    let mut calls = AllowedCalls::default();
    for list in [DATA, EVENTS, SOCKETS, MEMORY, THREADS, TIME, STATE, FILES] {
        calls.allow(list);
    }
    #[cfg(target_arch = "x86_64")]
    calls.allow(OLDER_VARIANTS);
    calls.allow_threads();
    calls.allow_signals_to_itself();
    calls.allow_descriptor_ioctls();
    calls.allow_harmless_prctls();
    calls.allow_own_limits();
    if needs.resolves_names {
        // getaddrinfo(3) asks resolvers on this host by Unix sockets, and loads modules of the C library.
        calls.allow_sockets(SocketFamilies::NetworkAndUnix);
        calls.allow(&[Sysno::mmap, Sysno::mprotect]);
    } else {
        calls.allow_sockets(SocketFamilies::Network);
        calls.allow_data_mappings();
    }
    // The filter does not see the operations of an io_uring.
    calls.deny_as_absent(&IO_URING);
    if needs.watches {
        calls.allow(&INOTIFY);
    }
    if needs.bpf_maps {
        calls.allow_bpf_maps();
    }
    if needs.raw_packets {
        calls.allow_sending_raw_packets();
    }
    calls.deny_newer_as_absent();
    calls
}

const DATA: &[Sysno] = &[
    Sysno::read,
    Sysno::write,
    Sysno::readv,
    Sysno::pwritev2,
    Sysno::writev,
    Sysno::pread64,
    Sysno::splice,
    Sysno::pipe2,
    Sysno::close,
    Sysno::close_range,
    Sysno::dup,
    Sysno::dup3,
    Sysno::fcntl,
];

const EVENTS: &[Sysno] = &[
    Sysno::epoll_create1,
    Sysno::epoll_ctl,
    Sysno::epoll_pwait,
    Sysno::epoll_pwait2,
    Sysno::eventfd2,
    Sysno::ppoll,
    Sysno::pselect6,
];

const SOCKETS: &[Sysno] = &[
    Sysno::socketpair,
    Sysno::bind,
    Sysno::connect,
    Sysno::listen,
    Sysno::accept,
    Sysno::accept4,
    Sysno::getsockname,
    Sysno::getpeername,
    Sysno::getsockopt,
    Sysno::setsockopt,
    Sysno::sendto,
    Sysno::sendmsg,
    Sysno::sendmmsg,
    Sysno::recvfrom,
    Sysno::recvmsg,
    Sysno::recvmmsg,
    Sysno::shutdown,
];

const MEMORY: &[Sysno] = &[
    Sysno::brk,
    Sysno::munmap,
    Sysno::mremap,
    Sysno::madvise,
    Sysno::membarrier,
];

const THREADS: &[Sysno] = &[
    Sysno::futex,
    Sysno::set_robust_list,
    Sysno::get_robust_list,
    Sysno::set_tid_address,
    Sysno::rseq,
    Sysno::sched_yield,
    Sysno::sched_getaffinity,
    Sysno::sched_getparam,
    Sysno::sched_getscheduler,
    Sysno::rt_sigaction,
    Sysno::rt_sigprocmask,
    Sysno::rt_sigreturn,
    Sysno::sigaltstack,
    Sysno::restart_syscall,
    Sysno::exit,
    Sysno::exit_group,
    // Wait for the keeper of the routes, a child of this process.
    Sysno::wait4,
    Sysno::waitid,
];

const TIME: &[Sysno] = &[
    Sysno::clock_gettime,
    Sysno::clock_getres,
    Sysno::clock_nanosleep,
    Sysno::nanosleep,
    Sysno::gettimeofday,
];

const STATE: &[Sysno] = &[
    Sysno::getpid,
    Sysno::getppid,
    Sysno::gettid,
    Sysno::getuid,
    Sysno::geteuid,
    Sysno::getgid,
    Sysno::getegid,
    Sysno::capget,
    Sysno::getcpu,
    Sysno::getrandom,
    Sysno::getrusage,
    Sysno::sysinfo,
    Sysno::uname,
];

/// Landlock decides which files these calls may open.
const FILES: &[Sysno] = &[
    Sysno::openat,
    Sysno::openat2,
    Sysno::fstat,
    #[cfg(target_arch = "x86_64")]
    Sysno::newfstatat,
    #[cfg(not(target_arch = "x86_64"))]
    Sysno::fstatat,
    Sysno::statx,
    Sysno::statfs,
    Sysno::fstatfs,
    Sysno::faccessat,
    Sysno::faccessat2,
    Sysno::readlinkat,
    Sysno::getdents64,
    Sysno::getcwd,
    Sysno::lseek,
    Sysno::fadvise64,
    Sysno::unlinkat,
];

/// Calls for which newer architectures have only the variants above.
#[cfg(target_arch = "x86_64")]
const OLDER_VARIANTS: &[Sysno] = &[
    Sysno::access,
    Sysno::arch_prctl,
    Sysno::dup2,
    Sysno::epoll_create,
    Sysno::epoll_wait,
    Sysno::eventfd,
    Sysno::getdents,
    Sysno::getrlimit,
    Sysno::lstat,
    Sysno::open,
    Sysno::pipe,
    Sysno::poll,
    Sysno::readlink,
    Sysno::select,
    Sysno::stat,
    Sysno::time,
    Sysno::unlink,
];

const INOTIFY: [Sysno; 3] = [
    Sysno::inotify_init1,
    Sysno::inotify_add_watch,
    Sysno::inotify_rm_watch,
];

const IO_URING: [Sysno; 3] = [
    Sysno::io_uring_setup,
    Sysno::io_uring_enter,
    Sysno::io_uring_register,
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The lists differ between architectures, and not every architecture is tested with a confined process.
    #[test]
    fn every_list_compiles_for_this_architecture() {
        for bits in 0..16 {
            let needs = Needs {
                resolves_names: bits & 1 != 0,
                watches: bits & 2 != 0,
                bpf_maps: bits & 4 != 0,
                raw_packets: bits & 8 != 0,
                ..Needs::default()
            };
            let compiled = allowed(&needs).compile();
            assert!(compiled.is_ok(), "{needs:?}: {compiled:?}");
        }
    }
}

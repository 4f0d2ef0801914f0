//! The decision on each system call of a jailed program.
//!
//! A call that is in no group, such as one of a newer kernel, fails with ENOSYS. The tests compare the groups with the lists
//! of the kernel's headers and of the crate `syscalls`, so that a new call is noticed and decided. A group lists calls of all
//! architectures; an architecture that lacks a call ignores it.
//!
//! Calls that the kernel itself refuses across a user namespace need no rule here: the program runs in one that owns neither
//! its network nor its mounts, and that no process outside belongs to.

use libc::{ENOSYS, EPERM};

/// Calls with the same decision, for the same reason.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) decision: Decision,
    /// The reason of the decision.
    #[cfg_attr(
        not(test),
        allow(dead_code, reason = "read by people, and by the test of the table")
    )]
    pub(super) reason: &'static str,
    pub(super) calls: &'static [&'static str],
}

/// The decision on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Allow,
    /// Depends on the arguments.
    Check(Check),
    /// Made by the mediator for the program ([`MediatedCall`](super::MediatedCall)).
    Mediate,
    /// Changes mounts: fails with EPERM, unless mounts are allowed.
    Mount,
    /// Fails with this error number.
    Fail(i32),
}

/// The arguments that decide on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// Of socket(2): the family, and the type of a Unix socket.
    Socket,
    /// Of socketpair(2): the type of a Unix socket.
    SocketPair,
    /// Of sendto(2), sendmsg(2) and sendmmsg(2): the flags, the argument with this index.
    SendFlags(usize),
    /// Of setsockopt(2): the option.
    SocketOption,
    /// Of ioctl(2): the command.
    Ioctl,
    /// Of fcntl(2): the command, and the owner of the signals of a descriptor.
    SignalOwner,
    /// Of clone(2) and unshare(2): the flags.
    Clone,
    /// Of seccomp(2): the flag that requests a listener.
    Filter,
    /// The process in the first argument: 0 is the caller, others are left to the mediator.
    Process,
    /// Of prlimit64(2): the same, if the third argument, the new limit, is not null.
    NewLimit,
    /// Of setpriority(2) and ioprio_set(2): the process in the second argument, if the first, `which`, is `which_process`. Users
    /// and process groups are refused, because they may have processes outside.
    Priority { which_process: u32 },
}

// One call per line would be as many lines as the kernel has calls.
#[rustfmt::skip]
pub(super) const GROUPS: &[Group] = &[
    Group {
        decision: Decision::Mediate,
        reason: "a path or a name may lead to a Unix socket outside; a filter can't see what a descriptor is",
        calls: &["connect", "bind"],
    },
    Group {
        decision: Decision::Check(Check::Socket),
        reason: "families that belong to no network namespace; Unix datagrams, which need no connect(2)",
        calls: &["socket"],
    },
    Group {
        decision: Decision::Check(Check::SocketPair),
        reason: "Unix datagrams, which sendmsg(2) sends to any path, also from a connected pair",
        calls: &["socketpair"],
    },
    Group {
        decision: Decision::Check(Check::SendFlags(3)),
        reason: "MSG_FASTOPEN connects without connect(2), so the mediator could neither choose the port of the jail's listener nor report a refusal",
        calls: &["sendto", "sendmmsg"],
    },
    Group {
        decision: Decision::Check(Check::SendFlags(2)),
        reason: "MSG_FASTOPEN, as above",
        calls: &["sendmsg"],
    },
    Group {
        decision: Decision::Check(Check::SocketOption),
        reason: "with TCP_FASTOPEN_CONNECT, the first write may connect instead of connect(2)",
        calls: &["setsockopt"],
    },
    Group {
        decision: Decision::Check(Check::Ioctl),
        reason: "TIOCSTI and TIOCLINUX type into the terminal, a snapshot of btrfs shows what is hidden, and FIOSETOWN sets the owner of SIGIO, as F_SETOWN does",
        calls: &["ioctl"],
    },
    Group {
        decision: Decision::Check(Check::SignalOwner),
        reason: "F_SETOWN with a process group: on some kernels (Debian's 6.12.95) SIGIO for it passes the scope of Landlock",
        calls: &["fcntl", "fcntl64"],
    },
    Group {
        decision: Decision::Check(Check::Clone),
        reason: "with CLONE_PARENT, the new process is a child of the process outside that started the program, which takes its exit for the program's; on some kernels (Debian's 6.12.95) the owner of a network namespace can make interfaces in any other one",
        calls: &["clone", "unshare"],
    },
    Group {
        decision: Decision::Check(Check::Filter),
        reason: "once the mediator has exited, the kernel would notify a listener of the program's own, which could continue the calls that only the mediator may make",
        calls: &["seccomp"],
    },
    Group {
        decision: Decision::Fail(ENOSYS),
        reason: "its flags are in memory; C libraries use clone(2) then",
        calls: &["clone3"],
    },
    Group {
        decision: Decision::Check(Check::Process),
        reason: "acts on any process of the same user",
        calls: &["sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"],
    },
    Group {
        decision: Decision::Check(Check::NewLimit),
        reason: "limits any process of the same user",
        calls: &["prlimit64"],
    },
    Group {
        decision: Decision::Check(Check::Priority { which_process: PRIO_PROCESS }),
        reason: "acts on any process of the same user",
        calls: &["setpriority"],
    },
    Group {
        decision: Decision::Check(Check::Priority { which_process: IOPRIO_WHO_PROCESS }),
        reason: "acts on any process of the same user",
        calls: &["ioprio_set"],
    },
    Group {
        decision: Decision::Mount,
        reason: "can uncover a file, by unmounting or by moving it to where no mount covers it",
        calls: &[
            "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree",
            "open_tree_attr", "pivot_root", "umount", "umount2",
        ],
    },
    Group {
        decision: Decision::Fail(ENOSYS),
        reason: "keys and keyrings belong to the user, and request_key(2) starts a program outside as root",
        calls: &["add_key", "keyctl", "request_key"],
    },
    Group {
        decision: Decision::Fail(ENOSYS),
        reason: "a ring makes calls that no filter sees, such as connect(2)",
        calls: &["io_uring_enter", "io_uring_register", "io_uring_setup"],
    },
    Group {
        decision: Decision::Fail(ENOSYS),
        reason: "its arguments are in memory; C libraries use the calls that it stands for (Linux 4.3)",
        calls: &["socketcall"],
    },
    Group {
        decision: Decision::Fail(EPERM),
        reason: "opens a file by its number, past what covers it",
        calls: &["open_by_handle_at"],
    },
    Group {
        decision: Decision::Fail(EPERM),
        reason: "loads programs into the kernel",
        calls: &["bpf"],
    },
    Group {
        decision: Decision::Fail(EPERM),
        reason: "needs no permission over the process whose memory it frees",
        calls: &["process_mrelease"],
    },
    Group {
        decision: Decision::Allow,
        reason: "the program's own descriptors, and files, as the user may",
        calls: &[
            "_llseek", "access", "cachestat", "chdir", "chmod", "chown", "chown32", "chroot", "close",
            "close_range", "copy_file_range", "creat", "dup", "dup2", "dup3", "epoll_create",
            "epoll_create1", "epoll_ctl", "epoll_ctl_old", "epoll_pwait", "epoll_pwait2", "epoll_wait",
            "epoll_wait_old", "eventfd", "eventfd2", "faccessat", "faccessat2", "fadvise64",
            "fadvise64_64", "fallocate", "fanotify_init", "fanotify_mark", "fchdir", "fchmod", "fchmodat",
            "fchmodat2", "fchown", "fchown32", "fchownat", "fdatasync", "fgetxattr",
            "file_getattr", "file_setattr", "flistxattr", "flock", "fremovexattr", "fsetxattr", "fstat",
            "fstat64", "fstatat", "fstatat64", "fstatfs", "fstatfs64", "fsync", "ftruncate", "ftruncate64",
            "futimesat", "getcwd", "getdents", "getdents64", "getxattr", "getxattrat", "inotify_add_watch",
            "inotify_init", "inotify_init1", "inotify_rm_watch", "io_cancel", "io_destroy", "io_getevents",
            "io_pgetevents", "io_pgetevents_time64", "io_setup", "io_submit", "lchown", "lchown32",
            "lgetxattr", "link", "linkat", "listmount", "listxattr", "listxattrat", "llistxattr",
            "lremovexattr", "lseek", "lsetxattr", "lstat", "lstat64", "mkdir", "mkdirat", "mknod",
            "mknodat", "name_to_handle_at", "newfstatat", "oldfstat", "oldlstat", "oldstat", "open",
            "openat", "openat2", "pipe", "pipe2", "poll", "ppoll", "ppoll_time64", "pread64", "preadv",
            "preadv2", "pselect6", "pselect6_time64", "pwrite64", "pwritev", "pwritev2", "read",
            "readahead", "readdir", "readlink", "readlinkat", "readv", "removexattr", "removexattrat",
            "rename", "renameat", "renameat2", "rmdir", "select", "_newselect", "sendfile", "sendfile64",
            "setxattr", "setxattrat", "signalfd", "signalfd4", "splice", "stat", "stat64", "statfs",
            "statfs64", "statmount", "statx", "symlink", "symlinkat", "sync", "sync_file_range", "syncfs",
            "sysfs", "tee", "timerfd_create", "timerfd_gettime", "timerfd_gettime64", "timerfd_settime",
            "timerfd_settime64", "truncate", "truncate64", "umask", "unlink", "unlinkat", "ustat", "utime",
            "utimensat", "utimensat_time64", "utimes", "vmsplice", "write", "writev",
        ],
    },
    Group {
        decision: Decision::Allow,
        reason: "uses open sockets, which belong to the jail's network or are Unix sockets with connections",
        calls: &[
            "accept", "accept4", "getpeername", "getsockname", "getsockopt", "listen", "recvfrom",
            "recvmmsg", "recvmmsg_time64", "recvmsg", "shutdown",
        ],
    },
    Group {
        decision: Decision::Allow,
        reason: "the caller's own memory, threads, identity, time and state",
        calls: &[
            "alarm", "arch_prctl", "break", "brk", "capget", "capset", "clock_adjtime",
            "clock_adjtime64", "clock_getres", "clock_getres_time64", "clock_gettime", "clock_gettime64",
            "clock_nanosleep", "clock_nanosleep_time64", "execve", "execveat", "exit",
            "exit_group", "fork", "ftime", "futex", "futex_requeue", "futex_time64", "futex_wait",
            "futex_waitv", "futex_wake", "get_mempolicy", "get_thread_area", "getcpu", "getegid",
            "getegid32", "geteuid", "geteuid32", "getgid", "getgid32", "getgroups", "getgroups32",
            "getitimer", "getpgrp", "getpid", "getppid", "getrandom", "getresgid", "getresgid32",
            "getresuid", "getresuid32", "getrlimit", "getrusage", "gettid", "gettimeofday", "getuid",
            "getuid32", "landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self",
            "lsm_get_self_attr", "lsm_list_modules", "lsm_set_self_attr", "madvise", "map_shadow_stack",
            "mbind", "membarrier", "memfd_create", "memfd_secret", "mincore", "mlock", "mlock2",
            "mlockall", "mmap", "mmap2", "modify_ldt", "mprotect", "mremap", "mseal", "msync", "munlock",
            "munlockall", "munmap", "nanosleep", "nice", "oldolduname", "olduname", "pause", "personality",
            "pkey_alloc", "pkey_free", "pkey_mprotect", "prctl", "remap_file_pages", "restart_syscall",
            "riscv_flush_icache", "riscv_hwprobe", "rseq", "rt_sigaction", "rt_sigpending",
            "rt_sigprocmask", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_sigtimedwait_time64",
            "sched_get_priority_max", "sched_get_priority_min", "sched_yield", "set_mempolicy",
            "set_mempolicy_home_node", "set_robust_list", "set_thread_area", "set_tid_address",
            "setfsgid", "setfsgid32", "setfsuid", "setfsuid32", "setgid", "setgid32", "setgroups",
            "setgroups32", "setitimer", "setns", "setregid", "setregid32", "setresgid", "setresgid32",
            "setresuid", "setresuid32", "setreuid", "setreuid32", "setrlimit", "setsid", "setuid",
            "setuid32", "sgetmask", "sigaction", "sigaltstack", "signal", "sigpending", "sigprocmask",
            "sigreturn", "sigsuspend", "ssetmask", "sysinfo", "time", "timer_create", "timer_delete",
            "timer_getoverrun", "timer_gettime", "timer_gettime64", "timer_settime", "timer_settime64",
            "times", "ugetrlimit", "ulimit", "uname", "uprobe", "uretprobe", "userfaultfd",
            "vfork", "vm86", "vm86old", "wait4", "waitid", "waitpid",
        ],
    },
    Group {
        decision: Decision::Allow,
        reason: "System V IPC and message queues: of a namespace of the jail",
        calls: &[
            "ipc", "mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive", "mq_timedreceive_time64",
            "mq_timedsend", "mq_timedsend_time64", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd",
            "semctl", "semget", "semop", "semtimedop", "semtimedop_time64", "shmat", "shmctl", "shmdt",
            "shmget",
        ],
    },
    Group {
        decision: Decision::Allow,
        reason: "needs the permission of ptrace(2), which ends at the user namespace",
        calls: &[
            "get_robust_list", "kcmp", "migrate_pages", "move_pages", "perf_event_open", "pidfd_getfd",
            "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace",
        ],
    },
    Group {
        decision: Decision::Allow,
        reason: "signals end at the scope of Landlock (Linux 6.12)",
        calls: &[
            "kill", "pidfd_open", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "tgkill",
            "tkill",
        ],
    },
    Group {
        decision: Decision::Allow,
        reason: "reads what /proc shows, too; setpgid(2) changes the caller and its children only",
        calls: &[
            "getpgid", "getpriority", "getsid", "ioprio_get", "sched_getaffinity", "sched_getattr",
            "sched_getparam", "sched_getscheduler", "sched_rr_get_interval",
            "sched_rr_get_interval_time64", "setpgid",
        ],
    },
    Group {
        decision: Decision::Allow,
        reason: "needs a capability over the whole host, or over what the jail does not own",
        calls: &[
            "acct", "adjtimex", "clock_settime", "clock_settime64", "create_module", "delete_module",
            "finit_module", "init_module", "ioperm", "iopl", "kexec_file_load", "kexec_load",
            "lookup_dcookie", "quotactl", "quotactl_fd", "reboot", "setdomainname", "sethostname",
            "settimeofday", "stime", "swapoff", "swapon", "syslog", "vhangup",
        ],
    },
    Group {
        decision: Decision::Fail(ENOSYS),
        reason: "not in the kernel, or not any more",
        calls: &[
            "_sysctl", "afs_syscall", "bdflush", "get_kernel_syms", "getpmsg", "gtty", "idle", "lock", "mpx",
            "nfsservctl", "prof", "profil", "putpmsg", "query_module", "security", "stty", "tuxcall",
            "uselib", "vserver",
        ],
    },
];

/// From `linux/resource.h`; libc's constant has another type with musl than with glibc.
const PRIO_PROCESS: u32 = 0;
/// From `linux/ioprio.h`.
const IOPRIO_WHO_PROCESS: u32 = 1;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use syscalls::Sysno;

    use super::*;

    fn decided() -> BTreeSet<&'static str> {
        GROUPS
            .iter()
            .flat_map(|group| group.calls)
            .copied()
            .collect()
    }

    #[test]
    fn each_call_is_in_one_group_with_a_reason() {
        let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for group in GROUPS {
            assert!(!group.reason.is_empty());
            for call in group.calls {
                groups.entry(call).or_default().push(group.reason);
            }
        }
        groups.retain(|_, reasons| reasons.len() > 1);
        assert!(groups.is_empty(), "{groups:?}");
    }

    /// A call that this test reports is new: add it to the group that it belongs to, or deny it.
    #[test]
    fn every_call_of_the_kernels_lists_is_decided() {
        let decided = decided();
        let known: BTreeSet<_> = Sysno::iter()
            .map(|call| call.name())
            .chain(syscalls::x86::Sysno::iter().map(|call| call.name()))
            .map(|name| name.trim_start_matches("r#"))
            .collect();
        let missing: Vec<_> = known.difference(&decided).collect();
        assert!(missing.is_empty(), "undecided: {missing:?}");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn every_call_of_the_headers_is_decided() {
        let decided = decided();
        for header in ["unistd_64.h", "unistd_32.h"] {
            // Of Debian's linux-libc-dev, which every C compiler needs.
            let path = format!("/usr/include/x86_64-linux-gnu/asm/{header}");
            let text = std::fs::read_to_string(&path).expect("the kernel's headers");
            let names: BTreeSet<_> = text
                .lines()
                .filter_map(|line| line.strip_prefix("#define __NR_")?.split(' ').next())
                .collect();
            assert!(names.len() > 300, "{header}");
            let missing: Vec<_> = names.difference(&decided).collect();
            assert!(missing.is_empty(), "{header}: undecided: {missing:?}");
        }
    }
}

use super::super::bpf::evaluate;
use super::*;

const STRICT: JailRules = JailRules {
    allows_mounts: false,
    mediation: Mediation::Mediated,
};
const NESTED: JailRules = JailRules {
    allows_mounts: true,
    mediation: Mediation::Unmediated,
};

fn native_call(rules: JailRules, number: i64, args: &[u64]) -> u32 {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    evaluate(&program(rules), NATIVE, number as u32, all)
}

fn socket(rules: JailRules, family: i32, kind: i32) -> u32 {
    native_call(rules, libc::SYS_socket, &[family as u64, kind as u64])
}

#[test]
fn sockets_of_other_families_are_denied() {
    for family in FAMILIES {
        assert_eq!(socket(STRICT, family, libc::SOCK_DGRAM), SECCOMP_RET_ALLOW);
    }
    let is_other = |family: &i32| *family != libc::AF_UNIX && !FAMILIES.contains(family);
    for family in (0..64).filter(is_other) {
        let action = socket(STRICT, family, libc::SOCK_STREAM);
        assert_eq!(action, failure(libc::EAFNOSUPPORT), "{family}");
    }
    // The kernel reads an int, so a bit of the upper half changes nothing.
    let padded = u64::from(libc::AF_VSOCK as u32) | 1 << 32;
    let action = native_call(STRICT, libc::SYS_socket, &[padded, 1]);
    assert_eq!(action, failure(libc::EAFNOSUPPORT));
}

#[test]
fn only_stream_and_seqpacket_unix_sockets_are_opened() {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET] {
        assert_eq!(
            socket(STRICT, libc::AF_UNIX, kind | flags),
            SECCOMP_RET_ALLOW
        );
    }
    for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW] {
        let refused = failure(libc::ESOCKTNOSUPPORT);
        assert_eq!(socket(STRICT, libc::AF_UNIX, kind | flags), refused);
        let pair = [libc::AF_UNIX as u64, kind as u64];
        assert_eq!(native_call(STRICT, libc::SYS_socketpair, &pair), refused);
    }
    let refused = failure(libc::EAFNOSUPPORT);
    assert_eq!(socket(NESTED, libc::AF_UNIX, libc::SOCK_STREAM), refused);
    let pair = [libc::AF_UNIX as u64, libc::SOCK_STREAM as u64];
    assert_eq!(
        native_call(NESTED, libc::SYS_socketpair, &pair),
        SECCOMP_RET_ALLOW
    );
}

#[test]
fn connections_by_fast_open_are_denied() {
    let flags = (libc::MSG_FASTOPEN | libc::MSG_NOSIGNAL) as u64;
    let other = libc::MSG_NOSIGNAL as u64;
    for (call, index) in [
        (libc::SYS_sendto, 3),
        (libc::SYS_sendmsg, 2),
        (libc::SYS_sendmmsg, 3),
    ] {
        let with = |flags| {
            let mut args = [libc::MSG_FASTOPEN as u64; 4];
            args[index] = flags;
            native_call(STRICT, call, &args)
        };
        assert_eq!(with(flags), FAIL_EOPNOTSUPP);
        // The kernel reads an int.
        assert_eq!(with(flags | 1 << 32), FAIL_EOPNOTSUPP);
        assert_eq!(with(other), SECCOMP_RET_ALLOW);
    }
    let option = |level: i32, name: i32| {
        let args = [3, level as u64, name as u64];
        native_call(STRICT, libc::SYS_setsockopt, &args)
    };
    assert_eq!(
        option(libc::SOL_TCP, libc::TCP_FASTOPEN_CONNECT),
        FAIL_EOPNOTSUPP
    );
    assert_eq!(option(libc::SOL_TCP, libc::TCP_NODELAY), SECCOMP_RET_ALLOW);
    assert_eq!(
        option(libc::SOL_SOCKET, libc::TCP_FASTOPEN_CONNECT),
        SECCOMP_RET_ALLOW
    );
}

#[test]
fn typing_into_a_terminal_snapshots_and_owners_in_memory_are_denied() {
    for command in DENIED_IOCTLS {
        let action = native_call(STRICT, libc::SYS_ioctl, &[0, command.into()]);
        assert_eq!(action, FAIL_EPERM);
    }
    let other = native_call(STRICT, libc::SYS_ioctl, &[0, libc::TIOCGWINSZ]);
    assert_eq!(other, SECCOMP_RET_ALLOW);
}

#[test]
fn signals_to_a_process_group_by_a_descriptor_are_denied() {
    let fcntl = |command: i32, argument: i32| {
        let args = [3, command as u64, argument as u64];
        native_call(STRICT, libc::SYS_fcntl, &args)
    };
    assert_eq!(fcntl(libc::F_SETOWN, 7), SECCOMP_RET_ALLOW);
    assert_eq!(fcntl(libc::F_SETOWN, -7), FAIL_EPERM);
    assert_eq!(fcntl(F_SETOWN_EX.cast_signed(), 7), FAIL_EPERM);
    assert_eq!(fcntl(libc::F_SETFL, libc::O_ASYNC), SECCOMP_RET_ALLOW);
}

#[test]
fn children_of_the_parent_and_other_networks_are_denied() {
    for call in [libc::SYS_clone, libc::SYS_unshare] {
        let with = |rules, flags: i32| native_call(rules, call, &[flags as u64]);
        assert_eq!(with(STRICT, libc::CLONE_PARENT), FAIL_EPERM);
        assert_eq!(with(STRICT, libc::CLONE_NEWNET), FAIL_EPERM);
        assert_eq!(with(NESTED, libc::CLONE_NEWNET), SECCOMP_RET_ALLOW);
        assert_eq!(with(STRICT, libc::CLONE_NEWUSER), SECCOMP_RET_ALLOW);
    }
    assert_eq!(native_call(STRICT, libc::SYS_clone3, &[]), FAIL_ENOSYS);
    let smc = native_call(STRICT, libc::SYS_socket, &[libc::AF_INET as u64, 1, 256]);
    assert_eq!(smc, failure(libc::EPROTONOSUPPORT));
}

#[test]
fn calls_about_the_caller_are_allowed_and_others_are_mediated() {
    for (rules, other) in [(STRICT, SECCOMP_RET_USER_NOTIF), (NESTED, FAIL_EPERM)] {
        let affinity = |pid| native_call(rules, libc::SYS_sched_setaffinity, &[pid, 8, 1]);
        assert_eq!([affinity(0), affinity(7)], [SECCOMP_RET_ALLOW, other]);
        let priority = |which, who| native_call(rules, libc::SYS_setpriority, &[which, who]);
        assert_eq!([priority(0, 0), priority(0, 7)], [SECCOMP_RET_ALLOW, other]);
        assert_eq!([priority(1, 0), priority(2, 0)], [FAIL_EPERM; 2]);
        let limit = |pid, new| native_call(rules, libc::SYS_prlimit64, &[pid, 1, new]);
        assert_eq!([limit(0, 9), limit(7, 0)], [SECCOMP_RET_ALLOW; 2]);
        assert_eq!([limit(7, 9), limit(7, 1 << 32)], [other; 2]);
    }
}

#[test]
fn connections_are_mediated_and_mounts_denied() {
    for call in [libc::SYS_connect, libc::SYS_bind] {
        assert_eq!(native_call(STRICT, call, &[]), SECCOMP_RET_USER_NOTIF);
        assert_eq!(native_call(NESTED, call, &[]), SECCOMP_RET_ALLOW);
    }
    for call in [libc::SYS_mount, libc::SYS_umount2, libc::SYS_move_mount] {
        assert_eq!(native_call(STRICT, call, &[]), FAIL_EPERM);
        assert_eq!(native_call(NESTED, call, &[]), SECCOMP_RET_ALLOW);
    }
    for call in [libc::SYS_io_uring_setup, libc::SYS_request_key] {
        assert_eq!(native_call(STRICT, call, &[]), FAIL_ENOSYS);
    }
    for call in [libc::SYS_read, libc::SYS_execve, libc::SYS_shmget] {
        assert_eq!(native_call(STRICT, call, &[]), SECCOMP_RET_ALLOW);
    }
}

#[test]
fn undecided_numbers_are_denied() {
    let newest = Sysno::last().id();
    assert_eq!(native_call(STRICT, (newest + 1).into(), &[]), FAIL_ENOSYS);
    assert_eq!(native_call(STRICT, (u32::MAX - 1).into(), &[]), FAIL_ENOSYS);
    assert_eq!(undecided(vec![1, 2, 5, 0]), [3..5, 6..u32::MAX]);
}

#[test]
fn other_abis_are_denied_or_filtered() {
    let filter = program(STRICT);
    assert_eq!(evaluate(&filter, 0x1234, 0, [0; 6]), FAIL_ENOSYS);
    #[cfg(target_arch = "x86_64")]
    {
        use syscalls::x86::Sysno as I386;
        let x32 = 0x4000_0000 | libc::SYS_read as u32;
        assert_eq!(evaluate(&filter, NATIVE, x32, [0; 6]), FAIL_ENOSYS);
        let call = |call: I386, first: i32| {
            let args = [first as u64, 1, 0, 0, 0, 0];
            let architecture = super::super::i386::AUDIT_ARCH;
            evaluate(&filter, architecture, call.id() as u32, args)
        };
        assert_eq!(call(I386::socketcall, 1), FAIL_ENOSYS);
        let refused = failure(libc::EAFNOSUPPORT);
        assert_eq!(call(I386::socket, libc::AF_VSOCK), refused);
        assert_eq!(call(I386::socket, libc::AF_INET), SECCOMP_RET_ALLOW);
        assert_eq!(call(I386::connect, 3), SECCOMP_RET_USER_NOTIF);
        assert_eq!(call(I386::umount, 0), FAIL_EPERM);
        assert_eq!(call(I386::io_uring_setup, 1), FAIL_ENOSYS);
    }
}

//! The system calls of a jailed program: those by which a process reaches a network, or other processes, past its namespaces,
//! are denied, checked by their arguments, or made by a mediator, a process that the program has no access to.
//!
//! | module | |
//! |---|---|
//! | [`table`] | the decision on each call |
//! | [`call`] | decodes a call that the mediator makes or checks |
//!
//! Calls of ABIs that the filter does not know fail with ENOSYS.

mod call;
mod table;
#[cfg(test)]
mod tests;

use libc::{
    SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_RET_ALLOW, SECCOMP_RET_USER_NOTIF, sock_filter,
};
use syscalls::Sysno;

use super::bpf::{
    ARCHITECTURE, FAIL_ENOSYS, NATIVE, NUMBER, allow_without_flags, argument, decide_by, deny_x32,
    dispatch, fail_within, failure, if_equal, install, load, mask, ret,
};
use super::listener::{NotificationListener, listener_from};
use crate::{NameCall, Result};

pub use call::{AddressArgument, MediatedCall};
use table::{Check, Decision, GROUPS};

/// What a jailed program may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct JailRules {
    /// Whether the program may make network namespaces, and change mounts in mount namespaces of its own.
    allows_mounts: bool,
    mediation: Mediation,
}

/// Whether there is a mediator, to which the filter leaves the calls that it can't decide on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mediation {
    /// The mediator connects and binds sockets, and decides on calls about other processes.
    Mediated,
    /// There is none: no Unix sockets can be opened, except connected pairs, and calls about other processes are denied.
    Unmediated,
}

/// Installs the filter on this thread and what it executes, irrevocably. Returns the mediator's end.
/// `allows_mounts`: whether the program may make network namespaces, and change mounts in mount namespaces of its own.
///
/// # Errors
///
/// EACCES with neither CAP_SYS_ADMIN over the thread's user namespace nor no_new_privs. EBUSY if an inherited filter has a
/// mediator already: there can be only one.
pub fn confine_calls_with_mediator(allows_mounts: bool) -> Result<NotificationListener> {
    const CALL: &str = "seccomp(SECCOMP_FILTER_FLAG_NEW_LISTENER)";
    let program = program(JailRules {
        allows_mounts,
        mediation: Mediation::Mediated,
    });
    // With WAIT_KILLABLE_RECV, a signal does not restart a call that the mediator has received already. Before Linux 5.19 it
    // does, and the mediator makes the call twice.
    let flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE_RECV;
    let fd = match install(&program, flags) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            install(&program, SECCOMP_FILTER_FLAG_NEW_LISTENER)
        }
        installed => installed,
    };
    listener_from(fd.call(CALL)?)
}

/// Installs the filter as [`confine_calls_with_mediator`] does, but without a mediator ([`Mediation::Unmediated`]).
pub fn confine_calls_without_mediator(allows_mounts: bool) -> Result<()> {
    let program = program(JailRules {
        allows_mounts,
        mediation: Mediation::Unmediated,
    });
    install(&program, 0).call("seccomp(SECCOMP_SET_MODE_FILTER)")?;
    Ok(())
}

fn program(rules: JailRules) -> Vec<sock_filter> {
    let native = |name: &str| name.parse::<Sysno>().ok().map(|call| call.id() as u32);
    let mut program = vec![load(ARCHITECTURE)];
    program.extend(if_equal(NATIVE, &abi_filter(rules, native)));
    #[cfg(target_arch = "x86_64")]
    {
        let i386 = |name: &str| {
            let call = name.parse::<syscalls::x86::Sysno>().ok()?;
            Some(call.id() as u32)
        };
        program.extend(if_equal(super::i386::AUDIT_ARCH, &abi_filter(rules, i386)));
    }
    program.push(ret(FAIL_ENOSYS));
    program
}

/// The filter of an ABI. `number` returns the number of a call in this ABI, if it has one.
fn abi_filter(rules: JailRules, number: impl Fn(&str) -> Option<u32>) -> Vec<sock_filter> {
    let mut filter = vec![load(NUMBER)];
    filter.extend(deny_x32());
    let mut decided = Vec::new();
    for group in GROUPS {
        let instructions = rules.instructions(group.decision);
        for number in group.calls.iter().filter_map(|name| number(name)) {
            decided.push(number);
            if let Some(instructions) = &instructions {
                filter.extend(if_equal(number, instructions));
            }
        }
    }
    filter.extend(undecided(decided).into_iter().flat_map(fail_within));
    filter.push(ALLOW);
    filter
}

/// The ranges of numbers that are not in `decided`.
fn undecided(mut decided: Vec<u32>) -> Vec<std::ops::Range<u32>> {
    decided.sort_unstable();
    let mut next = 0;
    let mut ranges = Vec::new();
    for number in decided.into_iter().chain([u32::MAX]) {
        if next < number {
            ranges.push(next..number);
        }
        next = number.saturating_add(1);
    }
    ranges
}

impl JailRules {
    /// The instructions that decide a call; they may change the accumulator. `None` for a call that is always allowed.
    fn instructions(self, decision: Decision) -> Option<Vec<sock_filter>> {
        match decision {
            Decision::Allow => None,
            Decision::Check(check) => Some(self.check(check)),
            Decision::Mediate => match self.mediation {
                Mediation::Mediated => Some(vec![ret(SECCOMP_RET_USER_NOTIF)]),
                Mediation::Unmediated => None,
            },
            Decision::Mount => (!self.allows_mounts).then(|| vec![ret(FAIL_EPERM)]),
            Decision::Fail(errno) => Some(vec![ret(failure(errno))]),
        }
    }

    fn check(self, check: Check) -> Vec<sock_filter> {
        match check {
            Check::Socket => self.check_socket(),
            Check::SocketPair => check_socket_pair(),
            Check::SendFlags(index) => allow_without_flags(
                argument(index),
                libc::MSG_FASTOPEN.cast_unsigned(),
                FAIL_EOPNOTSUPP,
            ),
            Check::SocketOption => check_socket_option(),
            Check::Ioctl => check_ioctl(),
            Check::SignalOwner => check_signal_owner(),
            Check::Clone => {
                let network = if self.allows_mounts {
                    0
                } else {
                    libc::CLONE_NEWNET
                };
                let denied = (libc::CLONE_PARENT | network).cast_unsigned();
                allow_without_flags(argument(0), denied, FAIL_EPERM)
            }
            // EBUSY is what the kernel itself returns while there is a mediator.
            Check::Filter => allow_without_flags(
                argument(1),
                SECCOMP_FILTER_FLAG_NEW_LISTENER as u32,
                failure(libc::EBUSY),
            ),
            Check::Process => self.check_process(0),
            Check::NewLimit => self.check_new_limit(),
            Check::Priority { which_process } => {
                let mut checks = vec![load(argument(0))];
                checks.extend(if_equal(which_process, &self.check_process(1)));
                checks.push(ret(FAIL_EPERM));
                checks
            }
        }
    }

    fn check_socket(self) -> Vec<sock_filter> {
        let families = FAMILIES.map(|family| (family.cast_unsigned(), SECCOMP_RET_ALLOW));
        let mut checks = vec![load(argument(2))];
        checks.extend(dispatch(&[(IPPROTO_SMC, failure(libc::EPROTONOSUPPORT))]));
        checks.push(load(argument(0)));
        checks.extend(if_equal(libc::AF_UNIX as u32, &self.check_unix_type()));
        checks.extend(dispatch(&families));
        checks.push(ret(failure(libc::EAFNOSUPPORT)));
        checks
    }

    fn check_unix_type(self) -> Vec<sock_filter> {
        match self.mediation {
            Mediation::Mediated => allow_unix_streams(),
            Mediation::Unmediated => vec![ret(failure(libc::EAFNOSUPPORT))],
        }
    }

    /// Allows a call whose new limit, the third argument, is null; else checks the process.
    fn check_new_limit(self) -> Vec<sock_filter> {
        // A null pointer is zero in both halves.
        let mut check_upper_half = vec![load(argument(2) + size_of::<u32>())];
        check_upper_half.extend(if_equal(0, &[ALLOW]));
        let mut checks = vec![load(argument(2))];
        checks.extend(if_equal(0, &check_upper_half));
        checks.extend(self.check_process(0));
        checks
    }

    /// Allows a call about the caller itself, if the argument is 0. Calls about other processes are left to the mediator, or
    /// denied if there is none.
    fn check_process(self, index: usize) -> Vec<sock_filter> {
        let other = match self.mediation {
            Mediation::Mediated => SECCOMP_RET_USER_NOTIF,
            Mediation::Unmediated => FAIL_EPERM,
        };
        decide_by(argument(index), &[(0, SECCOMP_RET_ALLOW)], other)
    }
}

fn check_socket_pair() -> Vec<sock_filter> {
    let mut checks = vec![load(argument(0))];
    checks.extend(if_equal(libc::AF_UNIX as u32, &allow_unix_streams()));
    checks.push(ret(FAIL_EOPNOTSUPP));
    checks
}

/// Denies TCP_FASTOPEN_CONNECT.
fn check_socket_option() -> Vec<sock_filter> {
    let denied = (libc::TCP_FASTOPEN_CONNECT.cast_unsigned(), FAIL_EOPNOTSUPP);
    let check_tcp_option = decide_by(argument(2), &[denied], SECCOMP_RET_ALLOW);
    let mut checks = vec![load(argument(1))];
    checks.extend(if_equal(libc::SOL_TCP.cast_unsigned(), &check_tcp_option));
    checks.push(ALLOW);
    checks
}

fn check_ioctl() -> Vec<sock_filter> {
    let denied = DENIED_IOCTLS.map(|command| (command, FAIL_EPERM));
    decide_by(argument(1), &denied, SECCOMP_RET_ALLOW)
}

/// Denies F_SETOWN with a process group, and F_SETOWN_EX.
fn check_signal_owner() -> Vec<sock_filter> {
    let deny_group = allow_without_flags(argument(2), SIGN_BIT, FAIL_EPERM);
    let mut checks = vec![load(argument(1))];
    checks.extend(if_equal(libc::F_SETOWN.cast_unsigned(), &deny_group));
    checks.extend(dispatch(&[(F_SETOWN_EX, FAIL_EPERM)]));
    checks.push(ALLOW);
    checks
}

/// Allows SOCK_STREAM and SOCK_SEQPACKET. SOCK_DGRAM is denied, because datagrams can be sent to any path without connect(2).
fn allow_unix_streams() -> Vec<sock_filter> {
    let types = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET];
    let types = types.map(|kind| (kind.cast_unsigned(), SECCOMP_RET_ALLOW));
    let mut checks = vec![load(argument(1)), mask(SOCK_TYPE_MASK)];
    checks.extend(dispatch(&types));
    checks.push(ret(failure(libc::ESOCKTNOSUPPORT)));
    checks
}

/// The families of sockets, beside Unix sockets, that may be opened: those that belong to a network namespace. AF_VSOCK, by
/// which a virtual machine reaches its host, and AF_ALG, which uses keys of the user, do not; and a module may add others.
const FAMILIES: [i32; 5] = [
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
    libc::AF_PACKET,
    libc::AF_CAN,
];
/// The commands of ioctl(2) that are denied.
const DENIED_IOCTLS: [u32; 6] = [
    // Types into a terminal.
    libc::TIOCSTI as u32,
    // Pastes on a virtual console.
    libc::TIOCLINUX as u32,
    // BTRFS_IOC_SNAP_CREATE and BTRFS_IOC_SNAP_CREATE_V2 of `linux/btrfs.h`: a snapshot has the file that a mount covers.
    0x5000_9401,
    0x5000_9417,
    // FIOSETOWN and SIOCSPGRP of `asm-generic/sockios.h`: as F_SETOWN of fcntl(2), but the owner is in memory.
    0x8901,
    0x8902,
];
/// As F_SETOWN of fcntl(2), but the owner is in memory (`asm-generic/fcntl.h`).
const F_SETOWN_EX: u32 = 15;
/// The sign of an int: F_SETOWN takes a process group as a negative number.
const SIGN_BIT: u32 = 1 << 31;
/// SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV of `linux/seccomp.h`.
const WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;
/// IPPROTO_SMC of `linux/in.h`: remote direct memory access, whose devices network namespaces share.
const IPPROTO_SMC: u32 = 256;
/// From `linux/net.h`: the bits of the type, without SOCK_NONBLOCK and SOCK_CLOEXEC.
const SOCK_TYPE_MASK: u32 = 0xf;
const FAIL_EPERM: u32 = failure(libc::EPERM);
/// The kernel's error where Fast Open is off (net.ipv4.tcp_fastopen), which programs expect.
const FAIL_EOPNOTSUPP: u32 = failure(libc::EOPNOTSUPP);
const ALLOW: sock_filter = ret(SECCOMP_RET_ALLOW);

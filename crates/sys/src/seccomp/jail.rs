//! The system calls of a jailed program: those by which a process reaches a network, or other processes, past its namespaces,
//! are denied, checked by their arguments, or made by a mediator.
//!
//! | module | |
//! |---|---|
//! | [`table`] | what becomes of each call |
//! | [`call`] | decodes a call that the mediator has to make or to judge |
//!
//! Calls of ABIs that the filter does not know fail with ENOSYS.

mod call;
mod table;
#[cfg(test)]
mod tests;

use libc::{
    SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_USER_NOTIF,
    sock_filter,
};
use syscalls::Sysno;

use super::bpf::{
    ARCHITECTURE, FAIL_ENOSYS, NATIVE, NUMBER, argument, deny_x32, fail_within, if_equal, install,
    load, mask, ret, returns, without_flags,
};
use super::listener::{NotificationListener, listener_from};
use crate::{NameCall, Result};

pub use call::{AddressArgument, MediatedCall};
use table::{Check, Decision, GROUPS};

/// What a jailed program may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JailRules {
    /// Whether it may make network namespaces, and change mounts in mount namespaces of its own.
    pub mounts: bool,
    /// Unix sockets.
    pub unix_sockets: UnixSockets,
}

/// How Unix sockets of the program are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnixSockets {
    /// By the mediator.
    Mediated,
    /// Not at all: none can be opened, but for connected pairs.
    Refused,
}

/// Installs the filter on this thread and what it executes, irrevocably. Returns the mediator's end if Unix sockets are
/// mediated, and `None` if they are refused.
///
/// # Errors
///
/// EACCES without CAP_SYS_ADMIN over the thread's user namespace, or no_new_privs. EBUSY if Unix sockets are to be mediated
/// and an inherited filter has a mediator already: there can be only one.
pub fn confine_calls(rules: JailRules) -> Result<Option<NotificationListener>> {
    let program = program(rules);
    match rules.unix_sockets {
        UnixSockets::Mediated => {
            const CALL: &str = "seccomp(SECCOMP_FILTER_FLAG_NEW_LISTENER)";
            // A call that the mediator has received is made once, whatever signals come; before Linux 5.19 one that is
            // restarted after a signal is made twice.
            let flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE_RECV;
            let fd = match install(&program, flags) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    install(&program, SECCOMP_FILTER_FLAG_NEW_LISTENER)
                }
                installed => installed,
            };
            listener_from(fd.call(CALL)?).map(Some)
        }
        UnixSockets::Refused => {
            let installed = install(&program, 0);
            installed.call("seccomp(SECCOMP_SET_MODE_FILTER)")?;
            Ok(None)
        }
    }
}

fn program(rules: JailRules) -> Vec<sock_filter> {
    let native = |name: &str| name.parse::<Sysno>().ok().map(|call| call.id() as u32);
    let mut program = vec![load(ARCHITECTURE)];
    program.extend(if_equal(NATIVE, &of_abi(rules, native)));
    #[cfg(target_arch = "x86_64")]
    {
        let i386 = |name: &str| {
            let call = name.parse::<syscalls::x86::Sysno>().ok()?;
            Some(call.id() as u32)
        };
        program.extend(if_equal(super::i386::AUDIT_ARCH, &of_abi(rules, i386)));
    }
    program.push(ret(FAIL_ENOSYS));
    program
}

/// The filter of an ABI, in which calls have these numbers.
fn of_abi(rules: JailRules, number: impl Fn(&str) -> Option<u32>) -> Vec<sock_filter> {
    let mut filter = vec![load(NUMBER)];
    filter.extend(deny_x32());
    let mut decided = Vec::new();
    for group in GROUPS {
        let body = rules.body(group.decision);
        for number in group.calls.iter().filter_map(|name| number(name)) {
            decided.push(number);
            if let Some(body) = &body {
                filter.extend(if_equal(number, body));
            }
        }
    }
    filter.extend(undecided(decided).into_iter().flat_map(fail_within));
    filter.push(ALLOW);
    filter
}

/// The numbers that are not among these, as ranges.
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
    /// The instructions for a call that is not allowed in any case. They change the accumulator.
    fn body(self, decision: Decision) -> Option<Vec<sock_filter>> {
        match decision {
            Decision::Allow => None,
            Decision::Check(check) => Some(self.check(check)),
            Decision::Mediate => self
                .is_mediated()
                .then(|| vec![ret(SECCOMP_RET_USER_NOTIF)]),
            Decision::Mount => (!self.mounts).then(|| vec![ret(FAIL_EPERM)]),
            Decision::Fail(errno) => Some(vec![ret(failure(errno))]),
        }
    }

    fn check(self, check: Check) -> Vec<sock_filter> {
        match check {
            Check::Socket => {
                let families = FAMILIES.map(|family| (family.cast_unsigned(), SECCOMP_RET_ALLOW));
                let mut checks = vec![load(argument(2))];
                checks.extend(returns(&[(IPPROTO_SMC, failure(libc::EPROTONOSUPPORT))]));
                checks.push(load(argument(0)));
                checks.extend(if_equal(libc::AF_UNIX as u32, &self.unix_types()));
                checks.extend(returns(&families));
                checks.push(ret(failure(libc::EAFNOSUPPORT)));
                checks
            }
            Check::SocketPair => {
                let mut checks = vec![load(argument(0))];
                checks.extend(if_equal(libc::AF_UNIX as u32, &unix_streams()));
                checks.push(ret(failure(libc::EOPNOTSUPP)));
                checks
            }
            Check::Ioctl => {
                let denied: Vec<_> = DENIED_COMMANDS
                    .concat()
                    .into_iter()
                    .map(|command| (command, FAIL_EPERM))
                    .collect();
                let mut checks = vec![load(argument(1))];
                checks.extend(returns(&denied));
                checks.push(ALLOW);
                checks
            }
            Check::SignalOwner => {
                let mut is_group = vec![load(argument(2)), mask(SIGN_BIT)];
                is_group.extend(if_equal(0, &[ALLOW]));
                is_group.push(ret(FAIL_EPERM));
                let mut checks = vec![load(argument(1))];
                checks.extend(if_equal(libc::F_SETOWN.cast_unsigned(), &is_group));
                checks.extend(returns(&[(F_SETOWN_EX, FAIL_EPERM)]));
                checks.push(ALLOW);
                checks
            }
            Check::Clone => {
                let network = if self.mounts { 0 } else { libc::CLONE_NEWNET };
                let denied = (libc::CLONE_PARENT | network).cast_unsigned();
                without_flags(argument(0), denied, FAIL_EPERM)
            }
            // As the kernel says while there is a mediator.
            Check::Filter => without_flags(
                argument(1),
                SECCOMP_FILTER_FLAG_NEW_LISTENER as u32,
                failure(libc::EBUSY),
            ),
            Check::Process => self.process(0),
            Check::NewLimit => {
                // A pointer: both halves are zero.
                let mut is_null = vec![load(argument(2) + size_of::<u32>())];
                is_null.extend(if_equal(0, &[ALLOW]));
                let mut checks = vec![load(argument(2))];
                checks.extend(if_equal(0, &is_null));
                checks.extend(self.process(0));
                checks
            }
            Check::Which(process) => {
                let mut checks = vec![load(argument(0))];
                checks.extend(if_equal(process, &self.process(1)));
                checks.push(ret(FAIL_EPERM));
                checks
            }
        }
    }

    /// Allows a call about the caller, whose process id may be written as 0; others are for the mediator.
    fn process(self, index: usize) -> Vec<sock_filter> {
        let other = match self.unix_sockets {
            UnixSockets::Mediated => SECCOMP_RET_USER_NOTIF,
            UnixSockets::Refused => FAIL_EPERM,
        };
        let mut checks = vec![load(argument(index))];
        checks.extend(if_equal(0, &[ALLOW]));
        checks.push(ret(other));
        checks
    }

    fn unix_types(self) -> Vec<sock_filter> {
        match self.unix_sockets {
            UnixSockets::Mediated => unix_streams(),
            UnixSockets::Refused => vec![ret(failure(libc::EAFNOSUPPORT))],
        }
    }

    fn is_mediated(self) -> bool {
        self.unix_sockets == UnixSockets::Mediated
    }
}

/// Allows SOCK_STREAM and SOCK_SEQPACKET: datagrams are sent to any path without connect(2).
fn unix_streams() -> Vec<sock_filter> {
    let types = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET];
    let mut checks = vec![load(argument(1)), mask(SOCK_TYPE_MASK)];
    checks.extend(returns(
        &types.map(|kind| (kind.cast_unsigned(), SECCOMP_RET_ALLOW)),
    ));
    checks.push(ret(failure(libc::ESOCKTNOSUPPORT)));
    checks
}

const fn failure(errno: i32) -> u32 {
    SECCOMP_RET_ERRNO | errno.cast_unsigned()
}

/// The families of sockets that may be opened beside Unix sockets: those that belong to a network namespace. AF_VSOCK does not,
/// by which a virtual machine reaches its host, nor AF_ALG, which uses keys of the user; and a module may add others.
const FAMILIES: [i32; 5] = [
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
    libc::AF_PACKET,
    libc::AF_CAN,
];
/// TIOCSTI; and TIOCLINUX, which pastes on a virtual console.
const TYPING_COMMANDS: [u32; 2] = [libc::TIOCSTI as u32, libc::TIOCLINUX as u32];
/// FIOSETOWN and SIOCSPGRP of `asm-generic/sockios.h`: as F_SETOWN of fcntl(2), with the owner in memory.
const OWNER_COMMANDS: [u32; 2] = [0x8901, 0x8902];
const DENIED_COMMANDS: [[u32; 2]; 3] = [TYPING_COMMANDS, SNAPSHOT_COMMANDS, OWNER_COMMANDS];
/// Of fcntl(2): the owner is in memory.
const F_SETOWN_EX: u32 = 15;
/// Of an int: F_SETOWN takes a process group as a negative number.
const SIGN_BIT: u32 = 1 << 31;
/// SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV of `linux/seccomp.h`.
const WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;
/// BTRFS_IOC_SNAP_CREATE and BTRFS_IOC_SNAP_CREATE_V2 of `linux/btrfs.h`: a snapshot has what a mount covers.
const SNAPSHOT_COMMANDS: [u32; 2] = [0x5000_9401, 0x5000_9417];
/// IPPROTO_SMC of `linux/in.h`: remote direct memory access, whose devices network namespaces share.
const IPPROTO_SMC: u32 = 256;
/// From `linux/net.h`.
const SOCK_TYPE_MASK: u32 = 0xf;
const FAIL_EPERM: u32 = failure(libc::EPERM);
const ALLOW: sock_filter = sock_filter {
    code: (libc::BPF_RET | libc::BPF_K) as u16,
    jt: 0,
    jf: 0,
    k: SECCOMP_RET_ALLOW,
};

//! The system calls that a jailed program is denied: those by which a process reaches a network, or its terminal's other
//! processes, past its namespaces.
//!
//! A deny-list, because the program is any program: everything else that the kernel allows goes on to work. It denies
//!
//! - sockets of families that do not belong to a network namespace, or not in every kernel: AF_VSOCK, by which a virtual
//!   machine reaches its host, and whatever a module may add. Allowed are those that do: Unix, IPv4, IPv6, netlink, packet,
//!   CAN, and AF_ALG, which is no network.
//! - io_uring_setup(2), because a ring opens sockets without socket(2) (IORING_OP_SOCKET, since Linux 5.19);
//! - ioctl(2) with TIOCSTI and TIOCLINUX, which type into the terminal that the program shares with the shell outside;
//! - calls of ABIs that the filter does not know; and socketcall(2) of 32-bit programs, whose arguments are in memory: their
//!   C libraries use socket(2), too (Linux 4.3).

use libc::{SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, sock_filter};

use super::bpf::{
    ARCHITECTURE, FAIL_ENOSYS, FIRST_ARGUMENT, NATIVE, NUMBER, SECOND_ARGUMENT, deny_x32, if_equal,
    install, load, ret, returns,
};
#[cfg(target_arch = "x86_64")]
use super::i386;
use crate::{NameCall, Result};

/// Installs the filter on this thread and what it executes, irrevocably.
///
/// # Errors
///
/// EACCES without CAP_SYS_ADMIN over the thread's user namespace, or no_new_privs.
pub fn deny_escapes() -> Result<()> {
    let installed = install(&program(), 0);
    installed.map(drop).call("seccomp(SECCOMP_SET_MODE_FILTER)")
}

fn program() -> Vec<sock_filter> {
    let mut program = vec![load(ARCHITECTURE)];
    program.extend(if_equal(NATIVE, &native()));
    #[cfg(target_arch = "x86_64")]
    program.extend(if_equal(i386::AUDIT_ARCH, &program_i386()));
    program.push(ret(FAIL_ENOSYS));
    program
}

fn native() -> Vec<sock_filter> {
    let mut calls = vec![load(NUMBER)];
    calls.extend(deny_x32());
    calls.extend(denied(
        libc::SYS_socket as u32,
        libc::SYS_ioctl as u32,
        libc::SYS_io_uring_setup as u32,
    ));
    calls
}

#[cfg(target_arch = "x86_64")]
fn program_i386() -> Vec<sock_filter> {
    let mut calls = vec![load(NUMBER)];
    calls.extend(returns(&[(i386::SOCKETCALL, FAIL_ENOSYS)]));
    calls.extend(denied(i386::SOCKET, i386::IOCTL, i386::IO_URING_SETUP));
    calls
}

/// The calls that are denied, by their numbers in one ABI; the accumulator has the number.
fn denied(socket: u32, ioctl: u32, io_uring_setup: u32) -> Vec<sock_filter> {
    let mut families = vec![load(FIRST_ARGUMENT)];
    families.extend(returns(
        &FAMILIES.map(|family| (family.cast_unsigned(), SECCOMP_RET_ALLOW)),
    ));
    families.push(ret(FAIL_EAFNOSUPPORT));
    let mut commands = vec![load(SECOND_ARGUMENT)];
    commands.extend(returns(
        &TYPING_COMMANDS.map(|command| (command, FAIL_EPERM)),
    ));
    commands.push(ret(SECCOMP_RET_ALLOW));
    let mut calls = Vec::new();
    calls.extend(if_equal(socket, &families));
    calls.extend(if_equal(ioctl, &commands));
    calls.extend(returns(&[(io_uring_setup, FAIL_ENOSYS)]));
    calls.push(ret(SECCOMP_RET_ALLOW));
    calls
}

/// The families of sockets that may be opened.
const FAMILIES: [i32; 7] = [
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
    libc::AF_PACKET,
    libc::AF_CAN,
    libc::AF_ALG,
];
/// TIOCSTI; and TIOCLINUX, which pastes on a virtual console.
const TYPING_COMMANDS: [u32; 2] = [libc::TIOCSTI as u32, libc::TIOCLINUX as u32];
const FAIL_EPERM: u32 = SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
const FAIL_EAFNOSUPPORT: u32 = SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT.cast_unsigned();

#[cfg(test)]
mod tests {
    use super::super::bpf::evaluate;
    use super::*;

    fn native_call(number: i64, args: [u64; 2]) -> u32 {
        evaluate(&program(), NATIVE, number as u32, args)
    }

    #[test]
    fn sockets_of_other_families_are_denied() {
        let socket = |family: i32| native_call(libc::SYS_socket, [family as u64, 1]);
        for family in FAMILIES {
            assert_eq!(socket(family), SECCOMP_RET_ALLOW, "{family}");
        }
        for family in 0..64 {
            if !FAMILIES.contains(&family) {
                assert_eq!(socket(family), FAIL_EAFNOSUPPORT, "{family}");
            }
        }
        // The kernel reads an int.
        let padded = u64::from(libc::AF_VSOCK as u32) | 1 << 32;
        assert_eq!(
            native_call(libc::SYS_socket, [padded, 1]),
            FAIL_EAFNOSUPPORT
        );
    }

    #[test]
    fn typing_into_a_terminal_and_io_uring_are_denied_and_other_calls_allowed() {
        for command in TYPING_COMMANDS {
            let done = native_call(libc::SYS_ioctl, [0, command.into()]);
            assert_eq!(done, FAIL_EPERM);
        }
        let other = native_call(libc::SYS_ioctl, [0, libc::TIOCGWINSZ]);
        assert_eq!(other, SECCOMP_RET_ALLOW);
        assert_eq!(native_call(libc::SYS_io_uring_setup, [1, 0]), FAIL_ENOSYS);
        for allowed in [libc::SYS_read, libc::SYS_connect, libc::SYS_execve] {
            assert_eq!(native_call(allowed, [0; 2]), SECCOMP_RET_ALLOW);
        }
    }

    #[test]
    fn other_abis_are_denied_or_filtered() {
        let filter = program();
        assert_eq!(evaluate(&filter, 0x1234, 0, [0; 2]), FAIL_ENOSYS);
        #[cfg(target_arch = "x86_64")]
        {
            let x32 = 0x4000_0000 | libc::SYS_read as u32;
            assert_eq!(evaluate(&filter, NATIVE, x32, [0; 2]), FAIL_ENOSYS);
            let call = |number, first| evaluate(&filter, i386::AUDIT_ARCH, number, [first, 1]);
            assert_eq!(call(i386::SOCKETCALL, 1), FAIL_ENOSYS);
            assert_eq!(call(i386::SOCKET, libc::AF_VSOCK as u64), FAIL_EAFNOSUPPORT);
            assert_eq!(call(i386::SOCKET, libc::AF_INET as u64), SECCOMP_RET_ALLOW);
            assert_eq!(call(i386::IO_URING_SETUP, 1), FAIL_ENOSYS);
        }
    }
}

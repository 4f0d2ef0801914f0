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
pub fn deny_ways_out() -> Result<()> {
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

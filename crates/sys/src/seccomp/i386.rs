//! Numbers of 32-bit system calls, and of the calls that socketcall(2) multiplexes (`SYS_*`, from `linux/net.h`).

use syscalls::x86::Sysno;

pub(super) const SOCKETCALL: u32 = Sysno::socketcall.id().cast_unsigned();
pub(super) const ACCEPT4: u32 = Sysno::accept4.id().cast_unsigned();
pub(super) const GETSOCKNAME: u32 = Sysno::getsockname.id().cast_unsigned();
pub(super) const GETPEERNAME: u32 = Sysno::getpeername.id().cast_unsigned();
pub(super) const IO_URING_SETUP: u32 = Sysno::io_uring_setup.id().cast_unsigned();
pub(super) const LISTEN: u32 = Sysno::listen.id().cast_unsigned();
pub(super) const SYS_LISTEN: u32 = 4;
pub(super) const SYS_ACCEPT: u32 = 5;
pub(super) const SYS_GETSOCKNAME: u32 = 6;
pub(super) const SYS_GETPEERNAME: u32 = 7;
pub(super) const SYS_ACCEPT4: u32 = 18;

/// From `linux/audit.h`: the ELF machine number, with a bit for little-endian.
pub(super) const AUDIT_ARCH: u32 = 0x4000_0003;

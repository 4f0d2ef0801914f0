//! Options and addresses that TCP and UDP sockets have in common.

pub mod egress_probe;
pub mod raw_address;
pub mod transparent;
pub mod upstream;

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};

use crate::error::checked;
use crate::{NameCall, Result};

/// The transport protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// The name in lower case, as in `ip rule` and in labels of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// How a listening socket shares its address with others.
#[derive(Clone, Copy, Debug, Default)]
pub struct BindOptions {
    /// SO_REUSEPORT (since Linux 3.9): several sockets of one user listen on the address, one for each worker, and the
    /// kernel spreads connections over them.
    pub reuse_port: bool,
    /// IPV6_V6ONLY for `[::]`, which leaves IPv4 to another socket. Other IPv6 addresses never accept IPv4.
    pub v6_only: bool,
}

impl BindOptions {
    /// A socket that shares its address with none, except that IPv4 may have one of its own beside `[::]`.
    pub const ALONE: Self = Self {
        reuse_port: false,
        v6_only: true,
    };

    /// Sets the options of a socket that will be bound to `addr`.
    pub(crate) fn set_on(self, socket: &Socket, addr: SocketAddr) -> Result<()> {
        if addr.is_ipv6() {
            let v6_only = self.v6_only || !addr.ip().is_unspecified();
            socket
                .set_only_v6(v6_only)
                .call("setsockopt(IPV6_V6ONLY)")?;
        }
        if self.reuse_port {
            socket
                .set_reuse_port(true)
                .call("setsockopt(SO_REUSEPORT)")?;
        }
        Ok(())
    }
}

/// Opens a non-blocking socket of the family of `addr`.
pub(crate) fn open(addr: SocketAddr, kind: Type, protocol: Protocol) -> Result<Socket> {
    let kind = kind.nonblocking().cloexec();
    Socket::new(Domain::for_address(addr), kind, Some(protocol)).call("socket(2)")
}

/// Attaches a filter that discards every datagram, until [`crate::udp::start_receiving`].
pub(crate) fn discard_all(socket: &Socket) -> Result<()> {
    socket
        .attach_filter(&[DISCARD_ALL])
        .call("setsockopt(SO_ATTACH_FILTER)")
}

/// Whether an IPv6 socket takes no IPv4 (IPV6_V6ONLY); `false` for an IPv4 socket. An accepted socket has the option of its
/// listener.
pub fn is_ipv6_only(socket: impl AsFd) -> bool {
    SockRef::from(&socket).only_v6().unwrap_or(false)
}

/// The index of the interface that the socket is bound to (SO_BINDTODEVICE, SO_BINDTOIFINDEX; socket(7)), or that the scope of
/// its link-local address names; 0 if it is bound to none.
pub fn bound_interface(socket: impl AsFd) -> u32 {
    // SAFETY: an integer has no invalid bits.
    let index = unsafe { get_option(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX) };
    index.unwrap_or(0)
}

/// Sets the firewall mark of what the socket sends (SO_MARK).
///
/// # Errors
///
/// EPERM without CAP_NET_ADMIN or, since Linux 5.17, CAP_NET_RAW.
pub fn set_mark(socket: impl AsFd, mark: u32) -> Result<()> {
    SockRef::from(&socket)
        .set_mark(mark)
        .call("setsockopt(SO_MARK)")
}

/// Attaches a filter that discards every packet without exactly this firewall mark. Needs no capability.
///
/// # Errors
///
/// ENOMEM, or EPERM where SO_LOCK_FILTER is set.
pub fn accept_only_marked(socket: impl AsFd, mark: u32) -> Result<()> {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let program = [
        SockFilter::new(LOAD_WORD, 0, 0, PACKET_MARK),
        // If equal, skips the next instruction.
        SockFilter::new(JUMP_IF_EQUAL, 1, 0, mark),
        DISCARD_ALL,
        // Keeps the whole packet.
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ];
    SockRef::from(&socket)
        .attach_filter(&program)
        .call("setsockopt(SO_ATTACH_FILTER)")
}

/// Sets a socket option whose value is an int (setsockopt(2)).
pub(crate) fn set_int(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the kernel reads one int, which lives across the call.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    checked(rc).map(drop)
}

/// Reads a socket option (getsockopt(2)). What the kernel does not write is zero.
///
/// # Safety
///
/// Each sequence of bytes has to be a valid `T`.
pub(crate) unsafe fn get_option<T>(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which `value` has.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    checked(rc)?;
    // SAFETY: all bytes are initialised, and the caller guarantees that they are a valid `T`.
    Ok(unsafe { value.assume_init() })
}

/// SKF_AD_OFF + SKF_AD_MARK (linux/filter.h): the load is not from the packet but from its metadata.
const PACKET_MARK: u32 = 0xffff_f000 + 20;
/// A filter that keeps 0 bytes of a packet: the kernel discards it (socket(7), SO_ATTACH_FILTER).
const DISCARD_ALL: SockFilter = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);

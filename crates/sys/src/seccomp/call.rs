//! Decoding an intercepted call, native, 32-bit or by socketcall(2).

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

#[cfg(target_arch = "x86_64")]
use super::i386;
use super::listener::Notification;
use crate::process::memory;

/// A call that the filter intercepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifiedCall {
    /// accept(2) or accept4(2).
    Accept {
        /// The listening socket, a descriptor of the program.
        listener: RawFd,
        /// The buffer for the peer's address.
        peer: AddressBuffer,
        /// Of accept4(2): SOCK_NONBLOCK.
        nonblocking: bool,
        /// Of accept4(2): SOCK_CLOEXEC.
        close_on_exec: bool,
    },
    /// listen(2).
    Listen {
        /// The socket that is about to listen, a descriptor of the program.
        socket: RawFd,
    },
    /// getpeername(2) or getsockname(2).
    Name {
        /// The socket, a descriptor of the program.
        socket: RawFd,
        /// The end that the requested address belongs to.
        end: Endpoint,
        /// The buffer for the address.
        buffer: AddressBuffer,
    },
}

/// An intercepted call, whatever its number in its ABI.
#[derive(Clone, Copy)]
enum CallKind {
    Accept,
    Accept4,
    Listen,
    Name(Endpoint),
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The peer's: getpeername(2).
    Peer,
    /// The socket's own: getsockname(2).
    Local,
}

/// A program's buffer for an address: a pointer to the buffer, and a pointer to an int that holds the size of the buffer and
/// receives the size of the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressBuffer {
    tid: u32,
    address: u64,
    length: u64,
}

impl Notification {
    /// Decodes the call.
    ///
    /// # Errors
    ///
    /// EINVAL for flags that accept4(2) does not know; ENOSYS for another call; EFAULT, ESRCH or EPERM where the arguments of a
    /// 32-bit program can't be read.
    pub fn call(&self) -> io::Result<NotifiedCall> {
        #[cfg(target_arch = "x86_64")]
        if self.data.arch == i386::AUDIT_ARCH {
            return self.call_i386();
        }
        let kind = match libc::c_long::from(self.data.nr) {
            libc::SYS_accept => CallKind::Accept,
            libc::SYS_accept4 => CallKind::Accept4,
            libc::SYS_listen => CallKind::Listen,
            libc::SYS_getsockname => CallKind::Name(Endpoint::Local),
            libc::SYS_getpeername => CallKind::Name(Endpoint::Peer),
            _ => return Err(unknown_call()),
        };
        self.decode(kind, self.data.args)
    }

    #[cfg(target_arch = "x86_64")]
    fn call_i386(&self) -> io::Result<NotifiedCall> {
        let [first, second, ..] = self.data.args;
        let kind = match self.data.nr.cast_unsigned() {
            i386::ACCEPT4 => CallKind::Accept4,
            i386::LISTEN => CallKind::Listen,
            i386::GETSOCKNAME => CallKind::Name(Endpoint::Local),
            i386::GETPEERNAME => CallKind::Name(Endpoint::Peer),
            i386::SOCKETCALL => return self.socketcall(first as u32, second),
            _ => return Err(unknown_call()),
        };
        self.decode(kind, self.data.args)
    }

    /// Decodes socketcall(2): its arguments are in memory, 32 bits each.
    #[cfg(target_arch = "x86_64")]
    fn socketcall(&self, which: u32, arguments: u64) -> io::Result<NotifiedCall> {
        let (kind, count) = match which {
            i386::SYS_ACCEPT => (CallKind::Accept, 3),
            i386::SYS_ACCEPT4 => (CallKind::Accept4, 4),
            i386::SYS_LISTEN => (CallKind::Listen, 2),
            i386::SYS_GETSOCKNAME => (CallKind::Name(Endpoint::Local), 3),
            i386::SYS_GETPEERNAME => (CallKind::Name(Endpoint::Peer), 3),
            _ => return Err(unknown_call()),
        };
        let mut words = [[0_u8; 4]; 6];
        // The bytes behind the last argument may be unmapped.
        let (given, _) = words.as_flattened_mut().split_at_mut(count * 4);
        memory::read(self.tid, arguments, given)?;
        self.decode(kind, words.map(|word| u32::from_ne_bytes(word).into()))
    }

    /// Decodes the arguments, which are the same in every ABI.
    fn decode(&self, kind: CallKind, arguments: [u64; 6]) -> io::Result<NotifiedCall> {
        let [socket, address, length, flags, ..] = arguments;
        let socket = socket as RawFd;
        let buffer = AddressBuffer {
            tid: self.tid,
            address,
            length,
        };
        match kind {
            CallKind::Accept => accept(socket, buffer, 0),
            CallKind::Accept4 => accept(socket, buffer, flags),
            CallKind::Listen => Ok(NotifiedCall::Listen { socket }),
            CallKind::Name(end) => Ok(NotifiedCall::Name {
                socket,
                end,
                buffer,
            }),
        }
    }
}

fn accept(listener: RawFd, peer: AddressBuffer, flags: u64) -> io::Result<NotifiedCall> {
    // The kernel reads an int, so it ignores the upper half.
    let flags = flags as libc::c_int;
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(NotifiedCall::Accept {
        listener,
        peer,
        nonblocking: flags & libc::SOCK_NONBLOCK != 0,
        close_on_exec: flags & libc::SOCK_CLOEXEC != 0,
    })
}

/// The error for a call of another ABI, or for one that a container's seccomp profile notifies of by mistake.
fn unknown_call() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOSYS)
}

impl AddressBuffer {
    /// Whether no address is requested, as accept(2) allows.
    pub fn is_null(&self) -> bool {
        self.address == 0
    }

    /// Reads the buffer's size in bytes.
    ///
    /// # Errors
    ///
    /// EINVAL if it is negative; EFAULT, ESRCH or EPERM where it can't be read.
    pub fn capacity(&self) -> io::Result<usize> {
        let mut size = [0; 4];
        memory::read(self.tid, self.length, &mut size)?;
        usize::try_from(i32::from_ne_bytes(size))
            .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
    }

    /// Writes as much of the address as fits into `capacity` bytes, and its full length, as the kernel does
    /// (accept(2)).
    ///
    /// # Errors
    ///
    /// EFAULT, ESRCH or EPERM where it can't be written.
    pub fn write(&self, address: SocketAddr, capacity: usize) -> io::Result<()> {
        let sockaddr = encode(address);
        let (fits, _) = sockaddr.split_at(capacity.min(sockaddr.len()));
        let len = (sockaddr.len() as i32).to_ne_bytes();
        memory::write(self.tid, [(self.address, fits), (self.length, &len)])
    }
}

/// `struct sockaddr_in` (ip(7)) or `struct sockaddr_in6` (ipv6(7)).
fn encode(address: SocketAddr) -> Vec<u8> {
    let port = address.port().to_be_bytes();
    match address {
        SocketAddr::V4(v4) => {
            let family = (libc::AF_INET as libc::sa_family_t).to_ne_bytes();
            [&family, &port, &v4.ip().octets()[..], &[0; 8]].concat()
        }
        SocketAddr::V6(v6) => {
            let family = (libc::AF_INET6 as libc::sa_family_t).to_ne_bytes();
            let (flow, scope) = (v6.flowinfo().to_ne_bytes(), v6.scope_id().to_ne_bytes());
            [&family, &port, &flow[..], &v6.ip().octets(), &scope].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_addresses_have_the_layout_of_the_kernels_structs() {
        let v4 = encode("192.0.2.1:258".parse().unwrap());
        assert_eq!(v4.len(), size_of::<libc::sockaddr_in>());
        assert_eq!(v4[2..8], [1, 2, 192, 0, 2, 1]);
        let v6 = encode("[2001:db8::1]:258".parse().unwrap());
        assert_eq!(v6.len(), size_of::<libc::sockaddr_in6>());
        assert_eq!(
            (&v6[2..4], &v6[8..12], v6[23]),
            (&[1, 2][..], &[0x20, 1, 0xd, 0xb8][..], 1)
        );
    }
}

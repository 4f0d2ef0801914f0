//! The error of an address that can't be listened on, with advice.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;

use peername_sys::SyscallError;

use crate::capabilities::Advice;

/// Opening a listening socket failed.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {addr}: {failed}{}", self.hint())]
pub struct BindError {
    addr: SocketAddr,
    failed: SyscallError,
    /// Whether the failed call was to make the socket transparent.
    is_from_transparency: bool,
}

impl BindError {
    /// Wraps the system call that failed for this address.
    pub fn new(addr: SocketAddr, failed: SyscallError) -> Self {
        Self {
            addr,
            failed,
            is_from_transparency: false,
        }
    }

    /// Wraps the system call that failed to make a socket on this address transparent.
    pub fn from_transparency(addr: SocketAddr, failed: SyscallError) -> Self {
        Self {
            addr,
            failed,
            is_from_transparency: true,
        }
    }

    /// Whether another socket has the address (EADDRINUSE).
    pub fn is_in_use(&self) -> bool {
        self.failed.source.kind() == io::ErrorKind::AddrInUse
    }

    fn hint(&self) -> Cow<'static, str> {
        let hint = match self.failed.source.kind() {
            _ if self.failed.is_out_of_descriptors() => {
                "; each address takes a descriptor per worker: raise LimitNOFILE or `ulimit -n`, or listen \
                 on fewer ports"
            }
            io::ErrorKind::PermissionDenied if self.is_from_transparency => {
                let advice = Advice::for_this_process();
                return format!(
                    "; --listen-transparent needs CAP_NET_RAW or CAP_NET_ADMIN: {advice}"
                )
                .into();
            }
            io::ErrorKind::AddrInUse => "; another program listens there (`ss -ltunp` shows it)",
            io::ErrorKind::PermissionDenied if self.addr.port() <= LAST_SYSTEM_PORT => {
                let advice = Advice::for_this_process();
                return format!("; ports below 1024 need CAP_NET_BIND_SERVICE: {advice}").into();
            }
            io::ErrorKind::PermissionDenied => {
                "; a sandbox or a security module (SELinux, AppArmor) forbids this port: its log says which"
            }
            io::ErrorKind::AddrNotAvailable => {
                "; no interface of this host has that address (`ip -brief addr` lists them)"
            }
            _ => "",
        };
        hint.into()
    }
}

/// The last port that by default only CAP_NET_BIND_SERVICE may bind (net.ipv4.ip_unprivileged_port_start, ip(7)).
const LAST_SYSTEM_PORT: u16 = 1023;

#[cfg(test)]
mod tests {
    use peername_sys::Errno;

    use super::*;

    /// More descriptors are no help against a lack of memory.
    #[test]
    fn only_exhausted_descriptors_get_the_advice_to_raise_their_limit() {
        for (errno, is_advised) in [
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::NOBUFS, false),
            (Errno::NOMEM, false),
        ] {
            let failed = SyscallError {
                call: "socket(2)",
                source: errno.into(),
            };
            let error = BindError::new(SocketAddr::from(([192, 0, 2, 1], 80)), failed).to_string();
            assert_eq!(error.contains("LimitNOFILE"), is_advised, "{error}");
        }
    }
}

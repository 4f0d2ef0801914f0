//! Why an address can't be listened on, and what to do about it.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;

use peername_sys::SyscallError;

use crate::capabilities::Advice;

/// Opening a listening socket failed.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {addr}: {failed}{}", hint(failed, *is_transparent))]
pub struct BindError {
    addr: SocketAddr,
    failed: SyscallError,
    /// Whether IP_TRANSPARENT was asked for.
    is_transparent: bool,
}

impl BindError {
    /// Wraps the system call that failed for this address.
    pub fn new(addr: SocketAddr, failed: SyscallError) -> Self {
        let is_transparent = false;
        Self {
            addr,
            failed,
            is_transparent,
        }
    }

    /// Wraps the system call by which a socket on this address could not be made transparent.
    pub fn not_transparent(addr: SocketAddr, failed: SyscallError) -> Self {
        let is_transparent = true;
        Self {
            addr,
            failed,
            is_transparent,
        }
    }
}

fn hint(error: &SyscallError, is_transparent: bool) -> Cow<'static, str> {
    let hint = match error.source.kind() {
        _ if error.is_exhaustion() => {
            "; each address takes a descriptor per worker: raise LimitNOFILE or `ulimit -n`, or listen \
             on fewer ports"
        }
        io::ErrorKind::PermissionDenied if is_transparent => {
            let advice = Advice::for_this_process();
            return format!("; --listen-transparent needs CAP_NET_RAW or CAP_NET_ADMIN: {advice}")
                .into();
        }
        io::ErrorKind::AddrInUse => {
            "; another program listens there (`ss -ltunp` shows it), or a listener of this one that a reload closed \
             still drains its sessions (UDP) or its backlog (TCP)"
        }
        io::ErrorKind::PermissionDenied => {
            let advice = Advice::for_this_process();
            return format!("; ports below 1024 need CAP_NET_BIND_SERVICE: {advice}").into();
        }
        io::ErrorKind::AddrNotAvailable => {
            "; no interface of this host has that address (`ip -brief addr` lists them)"
        }
        _ => "",
    };
    hint.into()
}

//! Name resolution as configured on this host (nsswitch.conf(5)).

use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

use crate::Errno;
use crate::process::confine::files;

/// Why a name has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The name does not exist, or has no address (EAI_NONAME, EAI_NODATA).
    #[error("the name does not exist, or has no address")]
    NoSuchName,
    /// No resolver could be reached, or it answered with an error.
    #[error("{0}")]
    Lookup(String),
    /// A system call of the resolver failed (EAI_SYSTEM).
    #[error("{0}")]
    System(Errno),
}

/// Checks that this process may still resolve names. If it has given up the system calls for that, getaddrinfo(3) would make
/// one that kills the process.
///
/// # Errors
///
/// [`io::ErrorKind::PermissionDenied`] if it has confined itself without names.
pub fn check_allowed() -> io::Result<()> {
    if files::are_names_denied() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "this process can't resolve names, because it did not need to at its start: restart it, or start it with \
             --no-sandbox",
        ));
    }
    Ok(())
}

/// Resolves a name to its addresses, in the order in which they should be tried (RFC 6724). Blocks for as long
/// as the resolver's configuration allows: getaddrinfo(3) has no timeout.
///
/// # Errors
///
/// [`ResolveError`]; also [`ResolveError::NoSuchName`] for a name that contains NUL.
pub fn lookup(name: &str) -> Result<Vec<IpAddr>, ResolveError> {
    check_allowed().map_err(|error| ResolveError::Lookup(error.to_string()))?;
    let name = CString::new(name).map_err(|_| ResolveError::NoSuchName)?;
    let hints = libc::addrinfo {
        ai_flags: 0,
        ai_family: libc::AF_UNSPEC,
        // One entry per address, instead of one for each socket type.
        ai_socktype: libc::SOCK_STREAM,
        ai_protocol: 0,
        ai_addrlen: 0,
        ai_addr: ptr::null_mut(),
        ai_canonname: ptr::null_mut(),
        ai_next: ptr::null_mut(),
    };
    let mut first = ptr::null_mut();
    // SAFETY: the name is a C string, no service is requested, and both pointers outlive the call.
    let code =
        unsafe { libc::getaddrinfo(name.as_ptr(), ptr::null(), &raw const hints, &raw mut first) };
    if code != 0 {
        return Err(lookup_error(code));
    }
    let found: Vec<_> = AddrInfoList(first).addresses().collect();
    if found.is_empty() {
        return Err(ResolveError::NoSuchName);
    }
    Ok(found)
}

fn lookup_error(code: libc::c_int) -> ResolveError {
    if matches!(code, libc::EAI_NONAME | libc::EAI_NODATA) {
        return ResolveError::NoSuchName;
    }
    if code == libc::EAI_SYSTEM {
        return match Errno::from_io_error(&io::Error::last_os_error()) {
            Some(errno) => ResolveError::System(errno),
            None => ResolveError::Lookup("a system call failed".to_owned()),
        };
    }
    // SAFETY: gai_strerror(3) returns a static string for any number.
    let text = unsafe { CStr::from_ptr(libc::gai_strerror(code)) };
    ResolveError::Lookup(text.to_string_lossy().into_owned())
}

/// The linked list that getaddrinfo(3) allocated.
struct AddrInfoList(*mut libc::addrinfo);

impl AddrInfoList {
    fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        // SAFETY: the entries are alive until `self` is dropped; the last one's `ai_next` is null.
        let mut next = unsafe { self.0.as_ref() };
        std::iter::from_fn(move || {
            let entry = next?;
            // SAFETY: as above.
            next = unsafe { entry.ai_next.as_ref() };
            Some(entry)
        })
        .filter_map(address)
    }
}

fn address(entry: &libc::addrinfo) -> Option<IpAddr> {
    match entry.ai_family {
        libc::AF_INET => {
            // SAFETY: an entry of this family has a sockaddr_in, aligned as one.
            let addr = unsafe { entry.ai_addr.cast::<libc::sockaddr_in>().as_ref() }?;
            Some(Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an entry of this family has a sockaddr_in6, aligned as one.
            let addr = unsafe { entry.ai_addr.cast::<libc::sockaddr_in6>().as_ref() }?;
            Some(Ipv6Addr::from(addr.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

impl Drop for AddrInfoList {
    fn drop(&mut self) {
        // SAFETY: the list came from getaddrinfo(3) and is freed once.
        unsafe { libc::freeaddrinfo(self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_addresses_resolve_to_themselves() {
        assert_eq!(lookup("192.0.2.1"), Ok(vec!["192.0.2.1".parse().unwrap()]));
        assert_eq!(
            lookup("2001:db8::1"),
            Ok(vec!["2001:db8::1".parse().unwrap()])
        );
    }

    #[test]
    fn localhost_resolves_to_loopback() {
        let found = lookup("localhost").unwrap();
        assert!(found.iter().all(IpAddr::is_loopback), "{found:?}");
    }

    #[test]
    fn a_name_with_nul_does_not_exist() {
        assert_eq!(lookup("local\0host"), Err(ResolveError::NoSuchName));
    }
}

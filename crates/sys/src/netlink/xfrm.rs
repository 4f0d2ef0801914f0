//! Detecting IPsec.

use std::io;

use rustix::net::netlink;

use super::raw::{self, NLMSG_DONE, NLMSG_ERROR};
use crate::{NameCall, Result};

/// Whether this network namespace has IPsec policies (`ip xfrm policy`). Needs CAP_NET_ADMIN. A kernel without IPsec has
/// none.
pub fn has_ipsec_policies() -> Result<bool> {
    let socket = match raw::open(Some(netlink::XFRM)) {
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(false),
        socket => socket.call("socket(NETLINK_XFRM)")?,
    };
    // An empty `struct xfrm_userpolicy_id` (linux/xfrm.h) selects all of them.
    let request = raw::dump_request(XFRM_MSG_GETPOLICY, &[0; 64]);
    raw::send_request(&socket, &request).call("send(XFRM_MSG_GETPOLICY)")?;
    let mut buffer = vec![0; 32 << 10];
    let answer = raw::receive(&socket, &mut buffer).call("recv(XFRM_MSG_GETPOLICY)")?;
    has_policy(answer).call("XFRM_MSG_GETPOLICY")
}

/// Whether the dump contains a policy: if not, its first message is its end.
fn has_policy(answer: &[u8]) -> io::Result<bool> {
    let (first, _) = raw::split_first(answer).ok_or(io::ErrorKind::InvalidData)?;
    match first.kind {
        NLMSG_DONE => Ok(false),
        NLMSG_ERROR => Err(first.error()),
        _ => Ok(true),
    }
}

const XFRM_MSG_GETPOLICY: u16 = 0x15;

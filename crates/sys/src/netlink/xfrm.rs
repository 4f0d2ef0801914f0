//! IPsec, as far as whether there is any.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use rustix::net::{recv, send, socket_with};

use crate::{NameCall, Result};

/// Whether this network namespace has IPsec policies (`ip xfrm policy`). Needs CAP_NET_ADMIN. A kernel without IPsec has
/// none.
pub fn has_policies() -> Result<bool> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::XFRM),
    );
    let socket = match socket {
        Err(error) if error == rustix::io::Errno::PROTONOSUPPORT => return Ok(false),
        socket => socket.call("socket(NETLINK_XFRM)")?,
    };
    send(&socket, &question(), SendFlags::empty()).call("send(XFRM_MSG_GETPOLICY)")?;
    let mut answer = vec![0; 32 << 10];
    let (len, _) = recv(&socket, answer.as_mut_slice(), RecvFlags::empty())
        .call("recv(XFRM_MSG_GETPOLICY)")?;
    read(&answer[..len]).call("XFRM_MSG_GETPOLICY")
}

/// `struct nlmsghdr` and an empty `struct xfrm_userpolicy_id` (linux/xfrm.h): all of them.
fn question() -> Vec<u8> {
    let mut question = Vec::with_capacity(LEN);
    question.extend((LEN as u32).to_ne_bytes());
    question.extend(XFRM_MSG_GETPOLICY.to_ne_bytes());
    question.extend(DUMP.to_ne_bytes());
    question.resize(LEN, 0);
    question
}

/// What the first message is tells.
fn read(answer: &[u8]) -> io::Result<bool> {
    let field = |at: usize| answer.get(at..at + 2)?.try_into().ok();
    match field(4).map(u16::from_ne_bytes) {
        Some(NLMSG_DONE) => Ok(false),
        Some(NLMSG_ERROR) => {
            let error = answer.get(16..20).and_then(|error| error.try_into().ok());
            let error = i32::from_ne_bytes(error.unwrap_or_default());
            Err(io::Error::from_raw_os_error(-error))
        }
        Some(_) => Ok(true),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

const LEN: usize = 16 + 64;
const XFRM_MSG_GETPOLICY: u16 = 0x15;
/// NLM_F_REQUEST and NLM_F_DUMP.
const DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

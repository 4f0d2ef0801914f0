//! netlink(7) without a runtime: the kernel answers a request within the call that sends it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// A message of any netlink protocol: a part of its `struct nlmsghdr`, and its body.
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) body: &'a [u8],
}

impl Message<'_> {
    /// The error of a message of kind [`NLMSG_ERROR`], a negative number in `struct nlmsgerr`.
    pub(crate) fn error(&self) -> io::Error {
        let error = self.body.first_chunk();
        match error.map(|&error| i32::from_ne_bytes(error)) {
            Some(error @ ..0) => io::Error::from_raw_os_error(error.saturating_neg()),
            _ => io::ErrorKind::InvalidData.into(),
        }
    }
}

/// Opens a socket; `None` is NETLINK_ROUTE.
pub(crate) fn open(protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        protocol,
    );
    Ok(socket?)
}

/// Sends a message.
pub(crate) fn send_request(socket: &OwnedFd, message: &[u8]) -> io::Result<()> {
    send(socket, message, SendFlags::empty())?;
    Ok(())
}

/// Receives messages of the answer, for [`split_first`].
pub(crate) fn receive<'a>(socket: &OwnedFd, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let (len, _) = recv(socket, &mut *buffer, RecvFlags::empty())?;
    Ok(buffer.get(..len).unwrap_or_default())
}

/// Encodes a request for one object of a kind.
pub(crate) fn request(kind: u16, body: &[u8]) -> Vec<u8> {
    message(kind, REQUEST, body)
}

/// Encodes a request to dump all objects of a kind.
pub(crate) fn dump_request(kind: u16, body: &[u8]) -> Vec<u8> {
    message(kind, REQUEST | DUMP, body)
}

fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let len = HEADER_LEN + body.len();
    let mut request = Vec::with_capacity(len);
    request.extend(u32::try_from(len).unwrap_or_default().to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.extend([0; 8]); // sequence number, port
    request.extend(body);
    request
}

/// Splits off the first message.
pub(crate) fn split_first(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let (head, _) = bytes.split_first_chunk::<HEADER_LEN>()?;
    let [l0, l1, l2, l3, k0, k1, f0, f1, ..] = *head;
    let len = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).ok()?;
    let message = Message {
        kind: u16::from_ne_bytes([k0, k1]),
        flags: u16::from_ne_bytes([f0, f1]),
        body: bytes.get(HEADER_LEN..len)?,
    };
    let next = len.checked_next_multiple_of(4)?.min(bytes.len());
    Some((message, bytes.get(next..)?))
}

pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;
/// Of `struct nlmsghdr`.
const HEADER_LEN: usize = 16;
/// NLM_F_REQUEST.
const REQUEST: u16 = 1;
/// NLM_F_DUMP.
const DUMP: u16 = 0x300;

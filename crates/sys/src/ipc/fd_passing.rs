//! Passing descriptors to another process (SCM_RIGHTS, unix(7)).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::net::sockopt::socket_type;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, sendmsg, shutdown,
    socketpair,
};
use socket2::SockRef;

use crate::ipc::foreign_fd::{ForeignFd, within_limit};
use crate::socket::set_int;
use crate::{NameCall, Result};

/// Opens a connected pair of SOCK_SEQPACKET sockets: they preserve message boundaries and report when the other end is
/// closed.
pub fn seqpacket_pair() -> Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).call("socketpair(2)")
}

/// Shuts down reception (shutdown(2)): further sends of the peer fail with EPIPE; what is queued can still be received.
///
/// # Errors
///
/// ENOTCONN: the socket is not connected.
pub fn shutdown_read(socket: impl AsFd) -> Result<()> {
    shutdown(socket, Shutdown::Read).call("shutdown(2)")
}

/// Sends `word`, with `fd` attached.
pub fn send_word(socket: impl AsFd, word: u64, fd: Option<BorrowedFd<'_>>) -> Result<()> {
    send_bytes(socket, &word.to_ne_bytes(), fd)
}

/// Sends a message, with `fd` attached.
pub fn send_bytes(socket: impl AsFd, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<()> {
    send_message(socket, bytes, fd.as_slice())
}

/// Sends a message, with `fds` attached: [`MAX_FDS`] at most.
///
/// # Errors
///
/// EAGAIN where a non-blocking socket is full or the socket's time limit is over, EPIPE once the other end is closed,
/// EMSGSIZE for a message larger than the send buffer, ETOOMANYREFS where too many descriptors are in flight.
pub fn send_message(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL)).call("sendmsg(2)");
    }
    let bytes = IoSlice::new(bytes);
    sendmsg(socket, &[bytes], &mut control, SendFlags::NOSIGNAL).call("sendmsg(2)")?;
    Ok(())
}

/// Receives the next word, with the descriptor attached to it. `None` once the other end is closed, or for a shorter
/// message.
pub fn receive_word(socket: impl AsFd) -> Result<Option<(u64, Option<OwnedFd>)>> {
    let mut word = [0; 8];
    let (len, fd) = receive_bytes(socket, &mut word)?;
    Ok((len == word.len()).then_some((u64::from_ne_bytes(word), fd)))
}

/// Receives the next message, with the descriptor attached to it: as much as fits into `bytes`; the rest is discarded.
/// Returns the length, 0 once the other end is closed.
pub fn receive_bytes(socket: impl AsFd, bytes: &mut [u8]) -> Result<(usize, Option<OwnedFd>)> {
    let (len, mut fds) = receive_message(socket, bytes)?;
    fds.truncate(1);
    Ok((len, fds.pop()))
}

/// Receives the next message, with the descriptors attached to it: as much as fits into `bytes`; the rest is discarded.
/// Returns the length, 0 once the other end is closed.
///
/// # Errors
///
/// EAGAIN where a non-blocking socket has no message, or the socket's time limit is over.
pub fn receive_message(socket: impl AsFd, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>)> {
    receive_with_fds(socket, bytes, MAX_FDS)
}

/// As [`receive_message`], from a process that is not trusted: accepts at most `max_fds` descriptors, and the kernel closes
/// further ones. All of them are closed in bounded time ([`ForeignFd`]). For processes with a single thread.
pub fn receive_foreign_fds(
    socket: impl AsFd,
    bytes: &mut [u8],
    max_fds: usize,
) -> Result<(usize, Vec<ForeignFd>)> {
    let (len, fds) = within_limit(|| receive_with_fds(socket, bytes, max_fds))?;
    Ok((len, fds.into_iter().map(ForeignFd::from).collect()))
}

fn receive_with_fds(
    socket: impl AsFd,
    bytes: &mut [u8],
    max_fds: usize,
) -> Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    // The kernel closes descriptors for which there is no space.
    let len = rustix::cmsg_space!(ScmRights(max_fds)).min(space.len());
    let (space, _) = space.split_at_mut(len);
    let mut control = RecvAncillaryBuffer::new(space);
    let received = loop {
        let slices = &mut [IoSliceMut::new(bytes)];
        match recvmsg(&socket, slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received.call("recvmsg(2)")?,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    Ok((received.bytes, fds))
}

/// Limits how long sending and receiving may block (SO_SNDTIMEO, SO_RCVTIMEO). After that they fail with EAGAIN.
pub fn set_time_limit(socket: impl AsFd, limit: Duration) -> Result<()> {
    let socket = SockRef::from(&socket);
    socket
        .set_read_timeout(Some(limit))
        .call("setsockopt(SO_RCVTIMEO)")?;
    socket
        .set_write_timeout(Some(limit))
        .call("setsockopt(SO_SNDTIMEO)")
}

/// Takes the SOCK_SEQPACKET socket that this process inherited as descriptor `number`, and makes it close-on-exec. `None` where
/// there is no such socket.
pub fn take_inherited(number: RawFd) -> Option<OwnedFd> {
    if number <= LAST_STANDARD_FD {
        return None;
    }
    // SAFETY: the descriptor is only borrowed, and only if it is open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_getfd(borrowed).ok()?;
    if socket_type(borrowed).ok()? != SocketType::SEQPACKET {
        return None;
    }
    fcntl_setfd(borrowed, FdFlags::CLOEXEC).ok()?;
    // SAFETY: the process that executed this one passed it for this purpose, and the caller takes it once.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Makes the kernel refuse descriptors that are sent to a Unix socket, or to sockets that it accepts (SO_PASSRIGHTS, since
/// Linux 6.16; no effect before). Otherwise the thread that reads closes each descriptor that it does not receive, and blocks
/// while a socket among them lingers (SO_LINGER).
pub fn refuse_descriptors(socket: impl AsFd) {
    let _ = set_int(socket.as_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, 0);
}

/// Lets the programs that this process executes inherit the descriptor.
pub fn clear_close_on_exec(fd: impl AsFd) -> Result<()> {
    fcntl_setfd(fd, FdFlags::empty()).call("fcntl(F_SETFD)")
}

/// The most descriptors that one message carries here; the kernel allows 253 (SCM_MAX_FD).
pub const MAX_FDS: usize = 64;
const LAST_STANDARD_FD: RawFd = 2;

/// From `asm-generic/socket.h`; the libc crate does not have it yet.
const SO_PASSRIGHTS: libc::c_int = 83;

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_descriptor_is_received_and_the_close_is_reported() {
        let (sender, receiver) = seqpacket_pair().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        send_word(&sender, 7, Some(writer.as_fd())).unwrap();
        send_word(&sender, 8, None).unwrap();
        drop((sender, writer));
        let (word, fd) = receive_word(&receiver).unwrap().unwrap();
        assert_eq!(word, 7);
        let mut copy = File::from(fd.unwrap());
        copy.write_all(b"x").unwrap();
        drop(copy);
        let mut text = String::new();
        File::from(OwnedFd::from(reader))
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "x");
        assert!(matches!(receive_word(&receiver), Ok(Some((8, None)))));
        assert!(matches!(receive_word(&receiver), Ok(None)));
    }
}

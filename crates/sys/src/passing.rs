//! Descriptors on their way to another process (SCM_RIGHTS, unix(7)).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::{NameCall, Result};

/// Two ends of a line that keeps messages apart and ends when one end is closed.
pub fn line() -> Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).call("socketpair(2)")
}

/// Sends `word`, and `fd` with it.
pub fn send(line: impl AsFd, word: u64, fd: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fd.into_iter().collect();
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let bytes = word.to_ne_bytes();
    sendmsg(
        line,
        &[IoSlice::new(&bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .call("sendmsg(2)")?;
    Ok(())
}

/// Waits for the next word, and what came with it. `None` once the other end is closed.
pub fn receive(line: impl AsFd) -> Result<Option<(u64, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 8];
    let received = loop {
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        match recvmsg(&line, slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(error) if io::Error::from(error).kind() == io::ErrorKind::Interrupted => {}
            received => break received.call("recvmsg(2)")?,
        }
    };
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok((received.bytes == bytes.len()).then_some((u64::from_ne_bytes(bytes), fd)))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    #[test]
    fn a_descriptor_arrives_and_the_end_shows() {
        let (here, there) = line().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        send(&here, 7, Some(writer.as_fd())).unwrap();
        send(&here, 8, None).unwrap();
        drop((here, writer));
        let (word, fd) = receive(&there).unwrap().unwrap();
        assert_eq!(word, 7);
        let mut copy = File::from(fd.unwrap());
        io::Write::write_all(&mut copy, b"x").unwrap();
        drop(copy);
        let mut text = String::new();
        File::from(OwnedFd::from(reader))
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "x");
        assert!(matches!(receive(&there), Ok(Some((8, None)))));
        assert!(matches!(receive(&there), Ok(None)));
    }
}

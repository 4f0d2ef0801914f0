//! Sending batches of datagrams (sendmmsg(2)), gathered from parts (scatter/gather).

use std::io::{self, IoSlice};
use std::mem::{MaybeUninit, zeroed};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use socket2::SockAddr;

use super::control::{Control, PktInfo};

/// A datagram to send, or several of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Its bytes: a range of the slices given to [`SendBatch::send`].
    pub parts: Range<usize>,
    /// Destination; `None` on a connected socket.
    pub to: Option<SocketAddr>,
    /// Local address to send from; `None` leaves the choice to the kernel.
    pub from: Option<PktInfo>,
    /// The size of each datagram, if the bytes are several datagrams: at most [`Transmit::MAX_SEGMENTS`], of which the last may
    /// be shorter (UDP_SEGMENT, since Linux 4.18).
    pub segment: Option<u16>,
}

impl Transmit {
    /// Maximum number of segments: UDP_MAX_SEGMENTS of every kernel so far is this or more.
    pub const MAX_SEGMENTS: usize = 64;
    /// Maximum bytes of all segments together, which leaves space for the IP and UDP headers.
    pub const MAX_SEGMENTED_BYTES: usize = 65_535 - 48;
}

/// Message headers of a batch, reused from call to call.
#[derive(Debug, Default)]
pub struct SendBatch {
    names: Vec<Option<SockAddr>>,
    /// Control messages, with their length.
    controls: Vec<(Control, usize)>,
}

impl SendBatch {
    /// Sends a batch (sendmmsg(2)) and returns how many messages were sent, in order from the first.
    ///
    /// # Errors
    ///
    /// InvalidInput where a message has parts that are not in `slices`: nothing is sent. Else the error of the first message,
    /// if no message was sent: EAGAIN, EMSGSIZE beyond the path MTU, EIO where a device can't segment, ECONNREFUSED and other
    /// ICMP errors of a connected socket, ENOBUFS.
    pub fn send(
        &mut self,
        socket: impl AsFd,
        slices: &[IoSlice<'_>],
        messages: &[Transmit],
    ) -> io::Result<usize> {
        let messages = messages.get(..MAX_BATCH).unwrap_or(messages);
        self.names.clear();
        self.controls.clear();
        for message in messages {
            let mut control = Control::EMPTY;
            let len = control.write(message.from, message.segment);
            self.names.push(message.to.map(SockAddr::from));
            self.controls.push((control, len));
        }
        // Initialized as needed: clearing all of them would cost as much as the call.
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_BATCH];
        for (((header, message), name), (control, control_len)) in headers
            .iter_mut()
            .zip(messages)
            .zip(&self.names)
            .zip(&mut self.controls)
        {
            // A message without its bytes would be an empty datagram, which means something to many protocols.
            let parts = slices.get(message.parts.clone());
            let parts = parts.ok_or(io::ErrorKind::InvalidInput)?;
            let header = &mut header.write(EMPTY).msg_hdr;
            if let Some(name) = name {
                header.msg_name = name.as_ptr().cast_mut().cast();
                header.msg_namelen = name.len();
            }
            // An IoSlice has the layout of an iovec, which std guarantees on Unix.
            header.msg_iov = parts.as_ptr().cast_mut().cast();
            header.msg_iovlen = parts.len() as _;
            if *control_len > 0 {
                header.msg_control = control.as_mut_ptr().cast();
                header.msg_controllen = *control_len as _;
            }
        }
        // SAFETY: the first `messages.len()` headers were written; they point to names, slices and control messages of
        // the given lengths, which are borrowed until the call has returned; sendmmsg only reads
        // them.
        let n = unsafe {
            libc::sendmmsg(
                socket.as_fd().as_raw_fd(),
                headers.as_mut_ptr().cast(),
                messages.len() as libc::c_uint,
                // C libraries differ in its type.
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
            )
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

/// Messages per call; the rest waits for the next.
const MAX_BATCH: usize = 32;
// SAFETY: mmsghdr is integers and pointers, for which zero is valid: no name, no buffer.
const EMPTY: libc::mmsghdr = unsafe { zeroed() };

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn message_without_its_bytes_is_not_sent() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_nonblocking(true).unwrap();
        let message = Transmit {
            parts: 0..2,
            to: receiver.local_addr().ok(),
            from: None,
            segment: None,
        };
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let slices = [IoSlice::new(b"first")];
        let sent = SendBatch::default().send(&sender, &slices, &[message]);
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(receiver.recv(&mut [0; 9]).is_err());
    }
}

//! Sending: many datagrams a system call, gathered from wherever their parts lie.

use std::io::{self, IoSlice};
use std::mem::{MaybeUninit, zeroed};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use socket2::SockAddr;

use super::control::{Control, PktInfo};

/// What to send, where to, and as whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Which of the slices given to [`SendBatch::send`] it is made of.
    pub parts: Range<usize>,
    /// Where to; `None` on a connected socket.
    pub to: Option<SocketAddr>,
    /// The address of ours it comes from; `None` leaves that to the kernel.
    pub from: Option<PktInfo>,
    /// Where set, it is several datagrams of this size, the last of which may be shorter
    /// (UDP_SEGMENT, since Linux 4.18). At most [`Transmit::MAX_SEGMENTS`].
    pub segment: Option<u16>,
}

impl Transmit {
    /// UDP_MAX_SEGMENTS of every kernel so far is this or more.
    pub const MAX_SEGMENTS: usize = 64;
    /// Octets of all segments together, with room left for the IP and UDP headers.
    pub const MAX_SEGMENTED_BYTES: usize = 65_535 - 48;
}

/// Room for the kernel's view of a batch, kept from call to call.
#[derive(Debug, Default)]
pub struct SendBatch {
    names: Vec<Option<SockAddr>>,
    controls: Vec<(Control, usize)>,
}

impl SendBatch {
    /// Sends a batch (sendmmsg(2)) and returns how many messages went out, in order from the first.
    /// An error is about the first message: none was sent.
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
            let used = control.write(message.from, message.segment);
            self.names.push(message.to.map(SockAddr::from));
            self.controls.push((control, used));
        }
        // Made when they are needed: to clear all of them would cost as much as the call.
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_BATCH];
        let filled = headers.iter_mut().zip(messages);
        for (((header, message), name), (control, used)) in
            filled.zip(&self.names).zip(&mut self.controls)
        {
            let parts = slices.get(message.parts.clone()).unwrap_or_default();
            let header = &mut header.write(EMPTY).msg_hdr;
            if let Some(name) = name {
                header.msg_name = name.as_ptr().cast_mut().cast();
                header.msg_namelen = name.len();
            }
            // An IoSlice has the layout of an iovec, which std guarantees on Unix.
            header.msg_iov = parts.as_ptr().cast_mut().cast();
            header.msg_iovlen = parts.len() as _;
            if *used > 0 {
                header.msg_control = control.as_mut_ptr().cast();
                header.msg_controllen = *used as _;
            }
        }
        // SAFETY: the first `messages.len()` headers were written; they point to names, slices and control messages of
        // the lengths they say, which are borrowed until the call has returned; sendmmsg only reads
        // them.
        let n = unsafe {
            libc::sendmmsg(
                socket.as_fd().as_raw_fd(),
                headers.as_mut_ptr().cast(),
                messages.len() as libc::c_uint,
                // The C libraries differ in its type.
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
            )
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

/// Messages a call; what is beyond waits for the next.
const MAX_BATCH: usize = 32;
// SAFETY: mmsghdr is integers and pointers, for which zeros are a value: nothing named, nothing sent.
const EMPTY: libc::mmsghdr = unsafe { zeroed() };

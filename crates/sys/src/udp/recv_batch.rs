//! Receiving batches of datagrams (recvmmsg(2)) into reused buffers.

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use socket2::{SockAddr, SockAddrStorage};

use super::control::{Control, ControlMessages, PktInfo};

/// Buffers for a batch of datagrams of any size.
///
/// Memory that no datagram has needed yet is not resident, because it was never touched: a batch of small datagrams costs a
/// page each.
#[derive(Debug)]
pub struct RecvBatch {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    name: libc::sockaddr_storage,
    control: Control,
    received: Option<RecvMeta>,
}

/// One datagram, or several of one size from one sender.
#[derive(Clone, Copy, Debug)]
pub struct RecvMeta {
    /// Bytes in the buffer.
    pub len: usize,
    /// The sender.
    pub peer: SocketAddr,
    /// The local address it was sent to, where the socket reports it.
    pub local: Option<PktInfo>,
    /// The original destination of a datagram that a TPROXY rule delivered, where the socket reports it
    /// ([`crate::socket::transparent::receive_original_destination`]).
    pub original: Option<SocketAddr>,
    /// With [`super::enable_gro`], the size of every datagram in the buffer but the last, which may be
    /// shorter. `None` for a single one.
    pub segment: Option<u16>,
    /// Datagrams that the kernel has dropped at this socket since it was opened, because the receive buffer was
    /// full (SO_RXQ_OVFL). `None` before the first.
    pub dropped_total: Option<u32>,
    /// Whether the datagram was longer than the buffer, and so truncated (MSG_TRUNC).
    pub is_truncated: bool,
}

impl RecvBatch {
    /// Buffers for `entries` datagrams.
    pub fn new(entries: usize) -> Self {
        let entry = Entry {
            // SAFETY: sockaddr_storage is plain integers, for which zero is valid.
            name: unsafe { zeroed() },
            control: Control::EMPTY,
            received: None,
        };
        Self {
            bytes: vec![0; entries * MAX_DATAGRAM_LEN],
            entries: vec![entry; entries],
        }
    }

    /// The number of entries.
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Receives queued datagrams into these entries and returns how many (recvmmsg(2)). Fewer than there are entries means
    /// that the queue is empty.
    ///
    /// # Errors
    ///
    /// EAGAIN when the queue is empty; ECONNREFUSED and other ICMP errors of a connected socket.
    pub fn receive(&mut self, socket: impl AsFd, entries: Range<usize>) -> io::Result<usize> {
        // Initialized as needed: clearing all of them would cost as much as the call.
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_BATCH];
        let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_BATCH];
        let buffers = self
            .bytes
            .chunks_exact_mut(MAX_DATAGRAM_LEN)
            .skip(entries.start);
        let entries = self.entries.get_mut(entries).unwrap_or_default();
        let mut wanted = 0;
        for (((entry, buffer), header), vector) in entries
            .iter_mut()
            .zip(buffers)
            .zip(&mut headers)
            .zip(&mut vectors)
        {
            let vector = vector.write(libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            });
            let message = &mut header.write(EMPTY).msg_hdr;
            message.msg_name = (&raw mut entry.name).cast();
            message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            message.msg_iov = ptr::from_mut(vector);
            message.msg_iovlen = 1;
            message.msg_control = entry.control.as_mut_ptr().cast();
            message.msg_controllen = Control::CONTROL_BYTES as _;
            wanted += 1;
        }
        // SAFETY: the first `wanted` headers were written; they point to names, buffers and control buffers of the given
        // lengths, all of which are borrowed mutably and live until the call has returned.
        let n = unsafe {
            libc::recvmmsg(
                socket.as_fd().as_raw_fd(),
                headers.as_mut_ptr().cast(),
                wanted,
                // C libraries differ in the type of this, and of the length below.
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        for (entry, header) in entries.iter_mut().zip(&headers).take(n) {
            // SAFETY: `n` is at most `wanted`, and the first `wanted` headers were written above.
            entry.record(unsafe { header.assume_init_ref() });
        }
        Ok(n)
    }

    /// The datagram in an entry, from the last batch that filled the entry.
    pub fn get(&self, entry: usize) -> Option<(RecvMeta, &[u8])> {
        let meta = self.entries.get(entry)?.received?;
        let start = entry * MAX_DATAGRAM_LEN;
        let bytes = self.bytes.get(start..start + meta.len)?;
        Some((meta, bytes))
    }
}

impl Entry {
    /// Stores the result of recvmmsg(2) for this entry.
    fn record(&mut self, header: &libc::mmsghdr) {
        let message = &header.msg_hdr;
        let mut name = SockAddrStorage::zeroed();
        // SAFETY: SockAddrStorage has the layout of sockaddr_storage, and every byte pattern of it is valid.
        unsafe { *name.view_as::<libc::sockaddr_storage>() = self.name };
        // SAFETY: the kernel has written `msg_namelen` bytes of a socket address into the storage.
        let name = unsafe { SockAddr::new(name, message.msg_namelen) };
        let ControlMessages {
            local,
            original,
            segment,
            dropped_total,
        } = self.control.read(message.msg_controllen as _);
        let len = (header.msg_len as usize).min(MAX_DATAGRAM_LEN);
        self.received = name.as_socket().map(|peer| RecvMeta {
            len,
            peer,
            local,
            original,
            segment: segment.filter(|&size| size > 0 && usize::from(size) < len),
            dropped_total,
            is_truncated: message.msg_flags & libc::MSG_TRUNC != 0,
        });
    }
}

/// No UDP datagram is larger (its length field has 16 bits), nor is a merged one.
const MAX_DATAGRAM_LEN: usize = 1 << 16;
/// Datagrams per call. A larger batch would not make each datagram noticeably cheaper.
const MAX_BATCH: usize = 32;

// SAFETY: mmsghdr is integers and pointers, for which zero is valid: no name, no buffer.
const EMPTY: libc::mmsghdr = unsafe { zeroed() };

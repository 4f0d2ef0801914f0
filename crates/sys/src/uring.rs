//! io_uring(7): multishot receive from many sockets, without a system call for each message.
//!
//! The kernel puts received bytes into provided buffers and queues a completion for each. The buffers take 64 KiB in all,
//! which is the backpressure: bytes that arrive faster than they are consumed wait in their socket.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, cqueue, opcode, squeue};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::{NameCall, Result};

/// A ring that receives from many sockets.
///
/// For a single thread: the one that opened it.
#[derive(Debug)]
pub struct MultishotReceiver {
    ring: Ring,
    buffers: Buffers,
    /// Requests to submit to the kernel, in this order.
    requests: VecDeque<squeue::Entry>,
}

/// A completion: bytes of a socket, or why no more are received.
#[derive(Debug)]
pub struct Completion<'a> {
    /// The token given to [`MultishotReceiver::start`].
    pub token: u64,
    /// The result.
    pub kind: CompletionKind<'a>,
    /// Whether this is the last completion for the token: the request has ended.
    pub is_last: bool,
}

/// See [`Completion`].
#[derive(Debug)]
pub enum CompletionKind<'a> {
    /// At most [`BUFFER_SIZE`] bytes.
    Bytes(&'a [u8]),
    /// The peer has sent FIN.
    Eof,
    /// All buffers are in use (ENOBUFS); [`MultishotReceiver::start`] starts again.
    NoBuffers,
    /// The request was cancelled ([`MultishotReceiver::cancel`]).
    Canceled,
    /// The connection has failed, or the kernel can't receive from this socket.
    Error(io::Error),
}

impl MultishotReceiver {
    /// Opens a ring for the calling thread (Linux 6.0).
    ///
    /// # Errors
    ///
    /// ENOSYS and EPERM where io_uring is not available: an older kernel, a system call filter,
    /// `kernel.io_uring_disabled` (io_uring_setup(2)); ENOMEM beyond RLIMIT_MEMLOCK; EINVAL for a kernel that is too old.
    pub fn new() -> Result<Self> {
        let ring = IoUring::builder()
            .setup_coop_taskrun()
            .setup_single_issuer()
            .setup_cqsize(COMPLETIONS)
            .build(SUBMISSIONS)
            .call("io_uring_setup(2)")?;
        let mut buffers = Buffers::new();
        // SAFETY: the entries are page aligned, as many as given, and never freed.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(
                buffers.entries.as_ptr().expose_provenance() as u64,
                BUFFER_COUNT,
                GROUP,
                0,
            )
        }
        .call("io_uring_register(IORING_REGISTER_PBUF_RING)")?;
        (0..BUFFER_COUNT).for_each(|id| buffers.provide(id));
        Ok(Self {
            ring: Ring(ring),
            buffers,
            requests: VecDeque::new(),
        })
    }

    /// Requests to receive from the socket, once submitted, until the last [`Completion`]. Until then the
    /// socket must stay open: before submission the request refers to its descriptor number only.
    pub fn start(&mut self, socket: BorrowedFd<'_>, token: u64) {
        let receive = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), GROUP);
        self.requests.push_back(receive.build().user_data(token));
    }

    /// Requests to cancel a token's request. Completions before the last one are still returned.
    pub fn cancel(&mut self, token: u64) {
        let cancel = opcode::AsyncCancel::new(token);
        self.requests
            .push_back(cancel.build().user_data(CANCEL_TOKEN));
    }

    /// Submits the requests of [`MultishotReceiver::start`] and [`MultishotReceiver::cancel`]. Returns whether the
    /// kernel took all of them. If not, it had no memory: retry later.
    pub fn submit(&mut self) -> bool {
        loop {
            let mut queue = self.ring.0.submission();
            while let Some(request) = self.requests.pop_front() {
                // SAFETY: the kernel writes to `buffers` only, which are never freed.
                if unsafe { queue.push(&request) }.is_err() {
                    self.requests.push_front(request);
                    break;
                }
            }
            let is_idle = queue.is_empty();
            drop(queue);
            if is_idle {
                return true;
            }
            if matches!(self.ring.0.submit(), Ok(0) | Err(_)) {
                return false;
            }
        }
    }

    /// A descriptor that is readable when completions are queued. Clear its readiness first, then call
    /// [`MultishotReceiver::next`] until it returns `None`: a completion in between makes it readable again.
    ///
    /// # Errors
    ///
    /// EMFILE, or the runtime can't register it.
    pub fn completion_event(&self) -> io::Result<AsyncFd<OwnedFd>> {
        // SAFETY: the ring's descriptor, which is open as long as the ring.
        let ring = unsafe { BorrowedFd::borrow_raw(self.ring.0.as_raw_fd()) };
        let bell = ring.try_clone_to_owned()?;
        // SAFETY: an OwnedFd is open and the same for as long as it lives, and AsyncFd owns it.
        Ok(unsafe { AsyncFd::register_with_interest(bell, Interest::READABLE) }?)
    }

    /// Passes the next completion to `take`; `None` when the queue is empty.
    pub fn next<T>(&mut self, take: impl FnOnce(Completion<'_>) -> T) -> Option<T> {
        let entry = self.arrived()?;
        let buffer = cqueue::buffer_select(entry.flags());
        let kind = match (entry.result(), buffer) {
            (len @ 1.., Some(id)) => {
                CompletionKind::Bytes(self.buffers.bytes(id, len.unsigned_abs()))
            }
            (0.., _) => CompletionKind::Eof,
            (error, _) => match -error {
                libc::ENOBUFS => CompletionKind::NoBuffers,
                libc::ECANCELED => CompletionKind::Canceled,
                error => CompletionKind::Error(io::Error::from_raw_os_error(error)),
            },
        };
        let taken = take(Completion {
            token: entry.user_data(),
            is_last: !cqueue::more(entry.flags()),
            kind,
        });
        if let Some(id) = buffer {
            self.buffers.provide(id);
        }
        Some(taken)
    }

    /// The next entry that concerns a socket.
    fn arrived(&mut self) -> Option<cqueue::Entry> {
        loop {
            let mut list = self.ring.0.completion();
            let next = list.find(|entry| entry.user_data() != CANCEL_TOKEN);
            drop(list);
            if next.is_some() || !self.ring.0.submission().cq_overflow() {
                return next;
            }
            // The kernel moves overflowed completions to the queue when it is entered; later ones wait behind them.
            self.ring.0.submit().ok()?;
        }
    }
}

struct Ring(IoUring);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ring").field(&self.0.as_raw_fd()).finish()
    }
}

/// The provided buffers, and the ring that lends them to the kernel. Neither is ever freed: a request in flight may still
/// write to them when the io_uring is closed.
#[derive(Debug)]
struct Buffers {
    entries: NonNull<BufRingEntry>,
    bytes: NonNull<u8>,
    tail: u16,
}

impl Buffers {
    fn new() -> Self {
        Self {
            entries: zeroed(usize::from(BUFFER_COUNT) * size_of::<BufRingEntry>()).cast(),
            bytes: zeroed(usize::from(BUFFER_COUNT) * BUFFER_SIZE),
            tail: 0,
        }
    }

    fn at(&self, id: u16) -> NonNull<u8> {
        debug_assert!(id < BUFFER_COUNT);
        // SAFETY: the index is below the number of buffers.
        unsafe { self.bytes.add(usize::from(id % BUFFER_COUNT) * BUFFER_SIZE) }
    }

    /// The bytes that the kernel has put into a buffer, which user space owns until it is provided again.
    fn bytes(&self, id: u16, len: u32) -> &[u8] {
        // SAFETY: the kernel owns a buffer only after `provide`, which can't be called while these bytes are borrowed.
        // All bytes are initialized: they were zero before.
        unsafe { slice::from_raw_parts(self.at(id).as_ptr(), (len as usize).min(BUFFER_SIZE)) }
    }

    /// Provides a buffer to the kernel (io_uring_register(2), IORING_REGISTER_PBUF_RING).
    fn provide(&mut self, id: u16) {
        let first = self.entries.as_ptr();
        // SAFETY: the index is below the number of entries, and the kernel does not own the one at the tail before the tail
        // is moved. The tail itself is in the first entry, beside the fields written here.
        unsafe {
            let entry = &mut *first.add(usize::from(self.tail % BUFFER_COUNT));
            entry.set_addr(self.at(id).as_ptr().expose_provenance() as u64);
            entry.set_len(BUFFER_SIZE as u32);
            entry.set_bid(id);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: `first` is the ring's first entry; the tail is written by this thread only.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(first).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}

/// Page aligned, and never freed.
fn zeroed(len: usize) -> NonNull<u8> {
    #[derive(Clone)]
    #[repr(align(4096))]
    struct Page(#[expect(dead_code, reason = "memory only")] [u8; PAGE]);
    let pages = vec![Page([0; PAGE]); len.div_ceil(PAGE)];
    NonNull::from(Box::leak(pages.into_boxed_slice())).cast()
}

/// Size of a buffer in bytes: the most that one completion carries.
pub const BUFFER_SIZE: usize = 1024;
/// Number of buffers: 64 KiB together.
pub const BUFFER_COUNT: u16 = 64;
const GROUP: u16 = 0;
const PAGE: usize = 4096;
/// Size of the submission queue; further requests follow.
const SUBMISSIONS: u32 = 64;
/// Size of the completion queue. No more can be queued than there are buffers, except last completions; the kernel keeps
/// those that overflow.
const COMPLETIONS: u32 = 1024;
/// The token of a cancel request.
const CANCEL_TOKEN: u64 = u64::MAX;

//! MultishotReceiver from many sockets without a system call for each message: io_uring(7).
//!
//! CompletionKind comes is put into buffers of the ring's own as it comes, and a list says kind and for whom. The kernel has
//! 64 KiB and no more to put it into: whoever sends faster than it is taken waits in his socket.

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

/// Sockets that are being received from, and kind came.
///
/// For one thread: the one that made it does all with it.
#[derive(Debug)]
pub struct MultishotReceiver {
    ring: Ring,
    buffers: Buffers,
    /// CompletionKind is to be asked of the kernel, in this order.
    requests: VecDeque<squeue::Entry>,
}

/// CompletionKind came on a socket, or why nothing more does.
#[derive(Debug)]
pub struct Completion<'a> {
    /// As given to [`MultishotReceiver::start`].
    pub token: u64,
    /// CompletionKind it was.
    pub kind: CompletionKind<'a>,
    /// Whether this was the last for the token: nothing is received for it any more.
    pub is_last: bool,
}

/// See [`Completion`].
#[derive(Debug)]
pub enum CompletionKind<'a> {
    /// At most [`BUFFER_SIZE`] octets.
    Bytes(&'a [u8]),
    /// The peer has sent FIN.
    Eof,
    /// All buffers are in use; [`MultishotReceiver::start`] begins anew.
    NoBuffers,
    /// It was stopped ([`MultishotReceiver::cancel`]).
    Canceled,
    /// The peer is gone, or the kernel can't do it: the error tells.
    Error(io::Error),
}

impl MultishotReceiver {
    /// A ring of the calling thread (Linux 6.0).
    ///
    /// # Errors
    ///
    /// ENOSYS and EPERM where io_uring is not to be had: an older kernel, a system call filter,
    /// `kernel.io_uring_disabled` (io_uring_setup(2)); ENOMEM without RLIMIT_MEMLOCK; EINVAL where it is too old for this.
    pub fn new() -> Result<Self> {
        let ring = IoUring::builder()
            .setup_coop_taskrun()
            .setup_single_issuer()
            .setup_cqsize(COMPLETIONS)
            .build(SUBMISSIONS)
            .call("io_uring_setup(2)")?;
        let mut buffers = Buffers::new();
        // SAFETY: the entries are page aligned, as many as said, and never freed.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(
                buffers.entries.as_ptr().expose_provenance() as u64,
                BUFFER_COUNT,
                GROUP,
                0,
            )
        }
        .call("io_uring_register(IORING_REGISTER_PBUF_RING)")?;
        (0..BUFFER_COUNT).for_each(|id| buffers.put(id));
        Ok(Self {
            ring: Ring(ring),
            buffers,
            requests: VecDeque::new(),
        })
    }

    /// Receives from the socket, once that is submitted, until there is an [`Completion`] that is the last. Until then the
    /// socket has to stay open: before it is submitted it is known by its number only.
    pub fn start(&mut self, socket: BorrowedFd<'_>, token: u64) {
        let receive = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), GROUP);
        self.requests.push_back(receive.build().user_data(token));
    }

    /// Asks for the last [`Completion`] of a token. CompletionKind came before is handed out before.
    pub fn cancel(&mut self, token: u64) {
        let cancel = opcode::AsyncCancel::new(token);
        self.requests
            .push_back(cancel.build().user_data(CANCEL_TOKEN));
    }

    /// Asks the kernel for kind was begun and stopped since; whether it heard all of it. If not, it had no memory for
    /// it, and is to be asked again later.
    pub fn submit(&mut self) -> bool {
        loop {
            let mut room = self.ring.0.submission();
            while let Some(request) = self.requests.pop_front() {
                // SAFETY: kind comes is put into `buffers`, which are never freed; nothing else is referred to.
                if unsafe { room.push(&request) }.is_err() {
                    self.requests.push_front(request);
                    break;
                }
            }
            let is_idle = room.is_empty();
            drop(room);
            if is_idle {
                return true;
            }
            if matches!(self.ring.0.submit(), Ok(0) | Err(_)) {
                return false;
            }
        }
    }

    /// CompletionKind is readable when something came. It has to be cleared before kind came is looked for the last time.
    ///
    /// # Errors
    ///
    /// When there is no descriptor left, or the runtime can't watch it.
    pub fn completion_event(&self) -> io::Result<AsyncFd<OwnedFd>> {
        // SAFETY: the ring's own, which is open as long as the ring.
        let ring = unsafe { BorrowedFd::borrow_raw(self.ring.0.as_raw_fd()) };
        let bell = ring.try_clone_to_owned()?;
        // SAFETY: an OwnedFd is open and the same for as long as it lives, and AsyncFd owns it.
        Ok(unsafe { AsyncFd::register_with_interest(bell, Interest::READABLE) }?)
    }

    /// Hands out kind came next; `None` when all that came has been.
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
            self.buffers.put(id);
        }
        Some(taken)
    }

    /// The next entry that is about a socket.
    fn arrived(&mut self) -> Option<cqueue::Entry> {
        loop {
            let mut list = self.ring.0.completion();
            let next = list.find(|entry| entry.user_data() != CANCEL_TOKEN);
            drop(list);
            if next.is_some() || !self.ring.0.submission().cq_overflow() {
                return next;
            }
            // CompletionKind there was no place for is put there when the kernel is entered, and all that comes waits behind it.
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

/// The buffers, and the list by which they are left to the kernel. Both are never freed: a request that the kernel has
/// not ended yet when the ring is closed may still write to them.
#[derive(Debug)]
struct Buffers {
    entries: NonNull<BufRingEntry>,
    octets: NonNull<u8>,
    tail: u16,
}

impl Buffers {
    fn new() -> Self {
        Self {
            entries: zeroed(usize::from(BUFFER_COUNT) * size_of::<BufRingEntry>()).cast(),
            octets: zeroed(usize::from(BUFFER_COUNT) * BUFFER_SIZE),
            tail: 0,
        }
    }

    fn at(&self, id: u16) -> NonNull<u8> {
        debug_assert!(id < BUFFER_COUNT);
        // SAFETY: there are so many buffers.
        unsafe {
            self.octets
                .add(usize::from(id % BUFFER_COUNT) * BUFFER_SIZE)
        }
    }

    /// CompletionKind the kernel has put into one, which is ours from then on.
    fn bytes(&self, id: u16, len: u32) -> &[u8] {
        // SAFETY: it is not the kernel's before it is put, for which it must not be borrowed. All octets are
        // initialized: they were zero before.
        unsafe { slice::from_raw_parts(self.at(id).as_ptr(), (len as usize).min(BUFFER_SIZE)) }
    }

    /// Leaves one to the kernel (io_uring_register(2), IORING_REGISTER_PBUF_RING).
    fn put(&mut self, id: u16) {
        let first = self.entries.as_ptr();
        // SAFETY: the list has so many entries, and the one at its tail is not the kernel's before the tail is moved.
        // The tail itself lies in the first entry, beside kind is written here.
        unsafe {
            let entry = &mut *first.add(usize::from(self.tail % BUFFER_COUNT));
            entry.set_addr(self.at(id).as_ptr().expose_provenance() as u64);
            entry.set_len(BUFFER_SIZE as u32);
            entry.set_bid(id);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: `first` is the list's first entry; the tail is written by this thread only.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(first).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}

/// Page aligned, and never freed.
fn zeroed(len: usize) -> NonNull<u8> {
    #[derive(Clone)]
    #[repr(align(4096))]
    struct Page(#[expect(dead_code, reason = "it is room")] [u8; PAGE]);
    let pages = vec![Page([0; PAGE]); len.div_ceil(PAGE)];
    NonNull::from(Box::leak(pages.into_boxed_slice())).cast()
}

/// The most that comes at a time, in octets.
pub const BUFFER_SIZE: usize = 1024;
/// So many buffers: 64 KiB together.
pub const BUFFER_COUNT: u16 = 64;
const GROUP: u16 = 0;
const PAGE: usize = 4096;
/// CompletionKind is asked for at a time; the rest follows.
const SUBMISSIONS: u32 = 64;
/// No more can be under way than there are buffers, but for last arrivals; the kernel keeps kind has no place.
const COMPLETIONS: u32 = 1024;
/// The token of a request to stop.
const CANCEL_TOKEN: u64 = u64::MAX;

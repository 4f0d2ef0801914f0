//! Datagrams of a received batch: the offsets and the session of each.

use std::ops::Range;

use peername_sys::udp::{RecvBatch, RecvMeta};

use super::batch_sender::SendFailures;
use crate::udp::lru_table::EntryId;

/// A datagram in a buffer of the inbox, with its session.
#[derive(Clone, Debug)]
pub(super) struct BatchItem {
    pub(super) session: EntryId,
    /// Index of the buffer.
    pub(super) buffer: usize,
    /// The payload's bytes in the buffer.
    pub(super) payload: Range<usize>,
}

/// The payload of a datagram.
pub(super) fn payload<'a>(inbox: &'a RecvBatch, item: &BatchItem) -> &'a [u8] {
    inbox
        .get(item.buffer)
        .and_then(|(_, bytes)| bytes.get(item.payload.clone()))
        .unwrap_or_default()
}

/// The ranges of the datagrams in a buffer: several where the kernel has merged them (UDP_GRO).
pub(super) fn split_merged(meta: &RecvMeta) -> impl Iterator<Item = Range<usize>> + use<> {
    let len = meta.len;
    let size = meta.segment.map_or(len, usize::from).max(1);
    // A buffer of length 0 holds one empty datagram.
    (0..len.max(1))
        .step_by(size)
        .map(move |start| start..(start + size).min(len))
}

/// Calls `count` for each datagram that was sent.
pub(super) fn for_each_sent(
    items: &[BatchItem],
    failed: &SendFailures,
    mut count: impl FnMut(&BatchItem),
) {
    let mut failed = failed.iter().map(|(index, _)| *index).peekable();
    for (index, item) in items.iter().enumerate() {
        if failed.next_if_eq(&index).is_none() {
            count(item);
        }
    }
}

/// The number of buffers of the inbox, which one call fills. Each is 64 KiB of address space, of which only used pages take
/// memory.
pub(super) const BATCH_SIZE: usize = 32;

//! The datagrams of a batch.

use std::ops::Range;

use peername_sys::udp::{RecvBatch, RecvMeta};

use super::batch_sender::SendFailures;
use crate::udp::lru_table::EntryId;

/// A datagram in the inbox, on its way.
#[derive(Clone, Debug)]
pub(super) struct BatchItem {
    pub(super) session: EntryId,
    pub(super) buffer: usize,
    pub(super) payload: Range<usize>,
}

pub(super) fn payload<'a>(inbox: &'a RecvBatch, item: &BatchItem) -> &'a [u8] {
    let bytes = inbox.get(item.buffer).map(|(_, bytes)| bytes);
    bytes
        .and_then(|bytes| bytes.get(item.payload.clone()))
        .unwrap_or_default()
}

/// Where the datagrams in a buffer begin and end.
pub(super) fn split_merged(arrived: &RecvMeta) -> impl Iterator<Item = Range<usize>> + use<> {
    let len = arrived.len;
    let size = arrived.segment.map_or(len, usize::from).max(1);
    // An empty datagram is one, too.
    (0..len.max(1))
        .step_by(size)
        .map(move |start| start..(start + size).min(len))
}

pub(super) fn for_each_sent(
    items: &[BatchItem],
    failed: &SendFailures,
    mut note: impl FnMut(&BatchItem),
) {
    let mut failed = failed.iter().map(|(at, _)| *at).peekable();
    for (at, item) in items.iter().enumerate() {
        if failed.next_if_eq(&at).is_none() {
            note(item);
        }
    }
}

/// Datagrams taken at once. Each buffer is 64 KiB of address space, of which only what is used is real.
pub(super) const BATCH_SIZE: usize = 32;

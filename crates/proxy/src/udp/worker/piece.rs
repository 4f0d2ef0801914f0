//! The datagrams of a batch.

use std::ops::Range;

use peername_sys::udp::{RecvBatch, RecvMeta};

use super::batch_sender::Failed;
use crate::udp::lru_table::Id;

/// A datagram in the inbox, on its way.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) session: Id,
    pub(super) place: usize,
    pub(super) payload: Range<usize>,
}

pub(super) fn payload<'a>(inbox: &'a RecvBatch, piece: &Piece) -> &'a [u8] {
    let bytes = inbox.get(piece.place).map(|(_, bytes)| bytes);
    bytes
        .and_then(|bytes| bytes.get(piece.payload.clone()))
        .unwrap_or_default()
}

/// Where the datagrams in a place begin and end.
pub(super) fn pieces(arrived: &RecvMeta) -> impl Iterator<Item = Range<usize>> + use<> {
    let len = arrived.len;
    let size = arrived.segment.map_or(len, usize::from).max(1);
    // An empty datagram is one, too.
    (0..len.max(1))
        .step_by(size)
        .map(move |start| start..(start + size).min(len))
}

pub(super) fn each_sent(pieces: &[Piece], failed: &Failed, mut note: impl FnMut(&Piece)) {
    let mut failed = failed.iter().map(|(at, _)| *at).peekable();
    for (at, piece) in pieces.iter().enumerate() {
        if failed.next_if_eq(&at).is_none() {
            note(piece);
        }
    }
}

/// Datagrams taken at once. Each place is 64 KiB of address space, of which only what is used is real.
pub(super) const BATCH: usize = 32;

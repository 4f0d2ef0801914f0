//! Sends a batch of datagrams with as few system calls as possible: sendmmsg(2) and UDP_SEGMENT.

use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::slice::from_ref;

use peername_sys::udp::{PktInfo, SendBatch, Transmit, supports_gso};

use crate::udp::drop_reason::DropReason;

/// Sends batches of datagrams. Each worker has one.
#[derive(Debug)]
pub(crate) struct BatchSender {
    send_batch: SendBatch,
    /// Whether runs of datagrams of one size are sent as one (UDP_SEGMENT).
    merge: bool,
}

/// A datagram to send, in parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingDatagram<'a> {
    pub(crate) header: &'a [u8],
    pub(crate) payload: &'a [u8],
    /// `None` on a connected socket.
    pub(crate) to: Option<SocketAddr>,
    pub(crate) from: Option<PktInfo>,
}

/// The indices of the datagrams of a batch that were not sent, in ascending order, and why.
pub(crate) type SendFailures = Vec<(usize, DropReason)>;

impl BatchSender {
    pub(crate) fn new() -> Self {
        Self {
            send_batch: SendBatch::default(),
            merge: supports_gso(),
        }
    }

    /// Sends all datagrams in order, and returns those that failed.
    pub(crate) fn send(
        &mut self,
        socket: impl AsFd,
        datagrams: &[OutgoingDatagram<'_>],
    ) -> SendFailures {
        if let [only] = datagrams {
            return match self.send_one(socket.as_fd(), only) {
                Ok(()) => Vec::new(),
                Err(reason) => vec![(0, reason)],
            };
        }
        let mut failed = Vec::new();
        self.send_runs(socket.as_fd(), datagrams, 0, self.merge, &mut failed);
        failed
    }

    /// Sends a single datagram. Towards backends this is the usual case: a batch has one datagram of each client.
    fn send_one(
        &mut self,
        socket: BorrowedFd<'_>,
        datagram: &OutgoingDatagram<'_>,
    ) -> Result<(), DropReason> {
        if let (None, None, []) = (datagram.to, datagram.from, datagram.header) {
            return retry(None, || {
                peername_sys::tcp::stream::send(socket, datagram.payload).map(drop)
            });
        }
        let slices = [datagram.header, datagram.payload].map(IoSlice::new);
        let message = Transmit {
            parts: 0..slices.len(),
            to: datagram.to,
            from: datagram.from,
            segment: None,
        };
        retry(message.to, || {
            self.send_batch
                .send(socket, &slices, from_ref(&message))
                .map(drop)
        })
    }

    /// Sends datagrams in runs; a run that fails is sent again datagram by datagram. `offset` is the index of the first
    /// one in the whole batch.
    fn send_runs(
        &mut self,
        socket: BorrowedFd<'_>,
        datagrams: &[OutgoingDatagram<'_>],
        offset: usize,
        merge: bool,
        failed: &mut SendFailures,
    ) {
        let batch = MessageBatch::new(datagrams, merge);
        let (mut done, mut retries) = (0, 0);
        while let Some(run) = batch.runs.get(done) {
            let messages = batch.messages.get(done..).unwrap_or_default();
            let error = match self.send_batch.send(socket, &batch.slices, messages) {
                Ok(sent) => {
                    (done, retries) = (done + sent.max(1), 0);
                    continue;
                }
                Err(error) => error,
            };
            if is_pending_error(&error, run.to) && retries < MAX_SEND_RETRIES {
                retries += 1;
                continue;
            }
            if run.datagrams.len() > 1 {
                self.disable_merging_on_device_error(&error);
                let run_datagrams = datagrams.get(run.datagrams.clone()).unwrap_or_default();
                let offset = offset + run.datagrams.start;
                self.send_runs(socket, run_datagrams, offset, false, failed);
            } else {
                failed.push((offset + run.datagrams.start, DropReason::from_kernel(error)));
            }
            (done, retries) = (done + 1, 0);
        }
    }

    /// Stops merging where the device can't compute checksums (EIO, udp(7)). Other errors may concern only this run, for
    /// example if it is too large for the path.
    fn disable_merging_on_device_error(&mut self, error: &io::Error) {
        if self.merge && peername_sys::is_device_error(error) {
            self.merge = false;
            tracing::info!(
                "UDP_SEGMENT does not work on the egress device ({error}); datagrams are sent one by one from now on"
            );
        }
    }
}

/// Runs of datagrams, each sent as one message: to one address, and of one size.
struct MessageBatch<'a> {
    slices: Vec<IoSlice<'a>>,
    messages: Vec<Transmit>,
    runs: Vec<Run>,
}

struct Run {
    datagrams: std::ops::Range<usize>,
    to: Option<SocketAddr>,
}

impl<'a> MessageBatch<'a> {
    fn new(datagrams: &[OutgoingDatagram<'a>], merge: bool) -> Self {
        let mut batch = Self {
            slices: Vec::with_capacity(2 * datagrams.len()),
            messages: Vec::with_capacity(datagrams.len()),
            runs: Vec::with_capacity(datagrams.len()),
        };
        let mut index = 0;
        while let Some(rest @ [first, ..]) = datagrams.get(index..) {
            let len = if merge { run_length(rest) } else { 1 };
            let start = batch.slices.len();
            for datagram in rest.iter().take(len) {
                batch.slices.extend(
                    [datagram.header, datagram.payload]
                        .into_iter()
                        .filter(|part| !part.is_empty())
                        .map(IoSlice::new),
                );
            }
            batch.messages.push(Transmit {
                parts: start..batch.slices.len(),
                to: first.to,
                from: first.from,
                segment: (len > 1).then(|| u16::try_from(first.len()).unwrap_or(u16::MAX)),
            });
            batch.runs.push(Run {
                datagrams: index..index + len,
                to: first.to,
            });
            index += len;
        }
        batch
    }
}

impl OutgoingDatagram<'_> {
    fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }
}

/// The number of datagrams at the beginning that can be sent as one: to the same address, and of the same size except for the
/// last, which may be shorter. An empty datagram is sent alone.
fn run_length(datagrams: &[OutgoingDatagram<'_>]) -> usize {
    let Some(first) = datagrams.first() else {
        return 0;
    };
    let size = first.len();
    let mut bytes = size;
    let mut len = 1;
    for datagram in datagrams.iter().take(Transmit::MAX_SEGMENTS).skip(1) {
        bytes += datagram.len();
        let fits = (datagram.to, datagram.from) == (first.to, first.from)
            && (1..=size).contains(&datagram.len())
            && bytes <= Transmit::MAX_SEGMENTED_BYTES;
        if !fits {
            break;
        }
        len += 1;
        if datagram.len() < size {
            break;
        }
    }
    len
}

/// Retries `send` while the error belongs to an earlier datagram.
fn retry(
    to: Option<SocketAddr>,
    mut send: impl FnMut() -> io::Result<()>,
) -> Result<(), DropReason> {
    let mut retries = 0;
    loop {
        match send() {
            Ok(()) => return Ok(()),
            Err(error) if is_pending_error(&error, to) && retries < MAX_SEND_RETRIES => {
                retries += 1;
            }
            Err(error) => return Err(DropReason::from_kernel(error)),
        }
    }
}

/// Whether an error belongs to an earlier datagram, so that the call must be retried. An ICMP error about a datagram is
/// reported by the next call on the connected socket, which then sends nothing.
fn is_pending_error(error: &io::Error, to: Option<SocketAddr>) -> bool {
    match error.kind() {
        ErrorKind::Interrupted => true,
        ErrorKind::WouldBlock => false,
        _ => to.is_none() && !peername_sys::is_destroyed(error),
    }
}

/// After this many retries, an error is taken to belong to the datagram itself.
const MAX_SEND_RETRIES: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn run_lengths(sizes: &[usize]) -> Vec<usize> {
        let payload = vec![0; 65_535];
        let datagrams: Vec<_> = sizes
            .iter()
            .map(|&size| OutgoingDatagram {
                header: &[1; 2],
                payload: &payload[..size],
                to: None,
                from: None,
            })
            .collect();
        let batch = MessageBatch::new(&datagrams, true);
        batch.runs.iter().map(|run| run.datagrams.len()).collect()
    }

    #[test]
    fn run_has_one_size_but_for_its_last_datagram() {
        assert_eq!(run_lengths(&[5, 5, 5]), [3]);
        assert_eq!(run_lengths(&[5, 5, 3, 5, 5]), [3, 2]);
        assert_eq!(run_lengths(&[5, 6, 6]), [1, 2]);
        assert_eq!(run_lengths(&[100; 130]), [64, 64, 2]);
        assert_eq!(run_lengths(&[40_000, 40_000]), [1, 1]);
        assert_eq!(run_lengths(&[]), [0; 0]);
    }

    #[test]
    fn datagrams_to_different_addresses_are_not_merged() {
        let to = |port| OutgoingDatagram {
            header: &[],
            payload: &[0; 9],
            to: Some(SocketAddr::from(([192, 0, 2, 1], port))),
            from: None,
        };
        let batch = MessageBatch::new(&[to(1), to(1), to(2), to(1)], true);
        let runs: Vec<_> = batch.runs.iter().map(|run| run.datagrams.len()).collect();
        assert_eq!(runs, [2, 1, 1]);
        assert_eq!(batch.messages[0].segment, Some(9));
        assert_eq!(batch.messages[1].segment, None);
    }

    #[test]
    fn empty_datagram_is_sent_alone() {
        let datagram = |payload| OutgoingDatagram {
            header: &[],
            payload,
            to: None,
            from: None,
        };
        let datagrams = [datagram(&[]), datagram(&[]), datagram(b"x"), datagram(&[])];
        let batch = MessageBatch::new(&datagrams, true);
        assert!(batch.runs.iter().all(|run| run.datagrams.len() == 1));
    }
}

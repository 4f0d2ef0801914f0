//! Decides whether a session is steady enough to be offloaded.

use peername_kernel::data_path::InstalledFlow;
use peername_kernel::usage::Usage;

use crate::udp::endpoints::ReplyTo;

/// A session as a candidate for offload: the number of requests in a row that came by the same path with the same header.
#[derive(Debug)]
pub(crate) struct OffloadCandidate {
    /// The header of the last request.
    pub(super) header: Box<[u8]>,
    /// The addresses of the last request.
    reply_to: ReplyTo,
    equal_in_a_row: u32,
    /// The number of requests that differed from the one before.
    changes: u32,
    /// The session's flow, while that is installed in the kernel.
    pub(super) installed: Option<InstalledFlow>,
    /// The kernel's counts at the last check.
    pub(super) last_usage: Usage,
}

impl OffloadCandidate {
    /// A candidate whose first request, with these properties, is still to be counted.
    pub(super) fn new(header: &[u8], reply_to: &ReplyTo) -> Self {
        Self {
            header: header.into(),
            reply_to: *reply_to,
            equal_in_a_row: 0,
            changes: 0,
            installed: None,
            last_usage: Usage::default(),
        }
    }

    /// Whether a request came by the same path with the same header as the one before.
    pub(super) fn is_equal(&self, header: &[u8], reply_to: &ReplyTo) -> bool {
        *self.header == *header && self.reply_to == *reply_to
    }

    /// Counts a request that is equal to the one before, or is the first.
    pub(super) fn count_equal(&mut self) {
        self.equal_in_a_row = self.equal_in_a_row.saturating_add(1);
    }

    /// Begins a new row with a request that differs from the one before, or that came after the flow was evicted. An eviction
    /// does not count as a change of the session.
    pub(super) fn start_over(&mut self, header: &[u8], reply_to: &ReplyTo) {
        let changes = self.changes + u32::from(!self.is_equal(header, reply_to));
        *self = Self {
            changes,
            equal_in_a_row: 1,
            ..Self::new(header, reply_to)
        };
    }

    /// Whether the session should be offloaded now. If the installation fails, for example because a map is full, it is retried
    /// when there have been twice as many equal requests.
    pub(super) fn should_install(&self) -> bool {
        self.equal_in_a_row >= MIN_EQUAL_REQUESTS && self.equal_in_a_row.is_power_of_two()
    }

    /// Whether the session has changed too often to be offloaded again. A session that fails over becomes a new candidate.
    pub(super) fn is_excluded(&self) -> bool {
        self.changes > MAX_CHANGES
    }
}

/// Equal requests in a row that make a session steady: an installation pays off only over many datagrams.
const MIN_EQUAL_REQUESTS: u32 = 4;
/// After more changes a session stays in user space: an installation for a few datagrams costs more than it saves.
const MAX_CHANGES: u32 = 16;

#[cfg(test)]
mod tests {
    use peername_server::addr::PeerAddr;

    use super::*;

    /// The requests in a row until the session is offloaded are as many at first as after a change or an eviction.
    #[test]
    fn session_is_steady_after_four_equal_requests() {
        let reply_to = ReplyTo {
            listener: 0,
            peer: PeerAddr("192.0.2.1:80".parse().unwrap()),
            local: None,
            original_destination: None,
            is_transparent: false,
        };
        let mut candidate = OffloadCandidate::new(b"header", &reply_to);
        for _ in 1..MIN_EQUAL_REQUESTS {
            candidate.count_equal();
            assert!(!candidate.should_install());
        }
        candidate.count_equal();
        assert!(candidate.should_install());
        for header in [b"header", b"change"] {
            candidate.start_over(header, &reply_to);
            for _ in 2..MIN_EQUAL_REQUESTS {
                candidate.count_equal();
                assert!(!candidate.should_install());
            }
            candidate.count_equal();
            assert!(candidate.should_install());
        }
    }
}

//! Which sessions may be left to the kernel.

use peername_kernel::data_path::{InstalledFlow, Usage};

use crate::udp::endpoints::ReplyTo;

/// How far a session's requests are equal.
#[derive(Debug)]
pub(crate) struct OffloadCandidate {
    pub(crate) header: Box<[u8]>,
    pub(crate) reply_to: ReplyTo,
    /// Requests in a row.
    pub(crate) equal: u32,
    /// How often it was otherwise.
    pub(crate) changes: u32,
    pub(crate) installed: Option<InstalledFlow>,
    /// What the kernel had done when it was asked last.
    pub(crate) last_usage: Usage,
}

impl OffloadCandidate {
    pub(crate) fn new(header: &[u8], reply_to: &ReplyTo) -> Self {
        Self {
            header: header.into(),
            reply_to: *reply_to,
            equal: 1,
            changes: 0,
            installed: None,
            last_usage: Usage::default(),
        }
    }
}

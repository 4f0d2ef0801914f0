//! Where the client stands in a datagram, and what is put in front of one.

pub(super) mod header;

/// What is put in front of payloads, and what must stand there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Headers {
    /// In front of requests.
    pub(crate) request: Box<[u8]>,
    /// Whether only the first request has it.
    pub(crate) first_only: bool,
    /// In front of replies.
    pub(crate) reply: Box<[u8]>,
    /// Whether replies come with the header of requests, which is taken off.
    pub(crate) replies_have_it: bool,
}

//! The headers of one session.

/// The headers of one session: those that are prepended, and whether replies must have one.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionHeaders {
    /// In front of requests.
    pub(crate) request: Box<[u8]>,
    /// Whether only the first request has it.
    pub(crate) first_only: bool,
    /// In front of replies.
    pub(crate) reply: Box<[u8]>,
    /// Whether a reply must begin with the header of its request, which is checked and removed (spp).
    pub(crate) expected_on_replies: bool,
}

//! The headers of one session.

/// The headers of one session: which are prepended to payloads, and which must be there.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionHeaders {
    /// In front of requests.
    pub(crate) request: Box<[u8]>,
    /// Whether only the first request has it.
    pub(crate) first_only: bool,
    /// In front of replies.
    pub(crate) reply: Box<[u8]>,
    /// Whether the receiver gives the header of requests back on replies, where it is checked and removed.
    pub(crate) expected_on_replies: bool,
}

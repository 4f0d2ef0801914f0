//! The headers of one session.

/// The headers that are prepended to requests and replies of one session, and whether the backend's replies must have one.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionHeaders {
    /// The header in front of requests.
    pub(crate) request: Box<[u8]>,
    /// Whether only the first request has the header.
    pub(crate) first_only: bool,
    /// The header in front of replies.
    pub(crate) reply: Box<[u8]>,
    /// Whether a reply must begin with the header of its request, which is then checked and removed (spp).
    pub(crate) expected_on_replies: bool,
}

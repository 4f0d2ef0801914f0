//! The kind of a request that is authorized.

/// Whether a tunnel or a single request is to be authorized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// A tunnel.
    Connect,
    /// One request, inside a tunnel or not.
    Request,
}

impl RequestKind {
    /// `connect` or `request`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Request => "request",
        }
    }
}

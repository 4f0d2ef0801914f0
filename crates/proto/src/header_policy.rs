//! The header policy: which valid headers a receiver accepts.

use thiserror::Error;

use crate::deviation::Deviation;
use crate::header::{Command, Endpoints, Header};

/// The rules by which a receiver refuses valid headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderPolicy {
    /// Refuses headers with a [`Deviation`].
    pub strict: bool,
    /// Refuses LOCAL and UNKNOWN.
    pub require_client: bool,
}

/// The reason to refuse a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeaderRefusal {
    /// The header of a relayed connection names no IP address, so that its client is not known.
    #[error(
        "a version 2 PROXY header without an IP address (AF_UNSPEC or AF_UNIX): its client is not known; \
         for its own connections the sender must use LOCAL"
    )]
    WithoutAddress,
    /// LOCAL or UNKNOWN.
    #[error("a header without a client (LOCAL or UNKNOWN)")]
    WithoutClient,
    /// See [`Deviation`].
    #[error("{0}")]
    Deviation(Deviation),
}

impl HeaderPolicy {
    /// Checks a valid header against the policy.
    pub fn admit(self, header: &Header<'_>) -> Result<(), HeaderRefusal> {
        let has_address = matches!(header.endpoints, Endpoints::Inet { .. });
        match header.command {
            Command::Proxy if !has_address => Err(HeaderRefusal::WithoutAddress),
            Command::Local | Command::Unknown if self.require_client => {
                Err(HeaderRefusal::WithoutClient)
            }
            _ => match header.deviation() {
                Some(deviation) if self.strict => Err(HeaderRefusal::Deviation(deviation)),
                _ => Ok(()),
            },
        }
    }
}

impl HeaderRefusal {
    /// A short name for counting: `snake_case`, stable across releases.
    pub fn reason(self) -> &'static str {
        match self {
            Self::WithoutAddress => "header_without_address",
            Self::WithoutClient => "header_without_client",
            Self::Deviation(_) => "header_deviation",
        }
    }
}

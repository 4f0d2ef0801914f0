//! The reasons to refuse a client.

use ipnet::IpNet;

/// The reason to refuse a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientRefusal {
    /// The client is on the deny list.
    #[error("the client is on the list of --deny-client, by its entry {by}")]
    Denied {
        /// The longest prefix of the list that covers the client.
        by: IpNet,
    },
    /// There is an allow list, and the client is not on it.
    #[error("the client is not on the list of --allow-client")]
    NotAllowed,
    /// The header lacks a required TLV.
    #[error("the header has no TLV {kind:#04x}, which --require-tlv requires")]
    TlvMissing {
        /// The type of the TLV.
        kind: u8,
    },
    /// A required TLV has another value.
    #[error("the header's TLV {kind:#04x} has none of the values that --require-tlv lists")]
    TlvMismatch {
        /// The type of the TLV.
        kind: u8,
    },
}

impl ClientRefusal {
    /// The stable reason code for metrics and logs.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Denied { .. } => "client_denied",
            Self::NotAllowed => "client_not_allowed",
            Self::TlvMissing { .. } => "tlv_missing",
            Self::TlvMismatch { .. } => "tlv_mismatch",
        }
    }
}

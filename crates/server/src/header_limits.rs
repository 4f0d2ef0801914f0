//! Bounds on the header, and on connections that have not sent it yet.

use std::time::Duration;

use peername_proto::{Header, HeaderPolicy};

use crate::header_error::HeaderError;
use crate::hop_count::is_hop_count;

/// Bounds on the header of a connection or a datagram.
#[derive(Clone, Copy, Debug)]
pub struct HeaderLimits {
    /// The time from accept(2) to the complete header. Bytes that arrive do not extend it.
    pub timeout: Duration,
    /// The largest header accepted, in bytes.
    pub max_len: usize,
    /// The policy by which valid headers are accepted.
    pub policy: HeaderPolicy,
    /// Connections of one peer without a header, over all workers; `None` for a share of all connections.
    pub pending_per_peer: Option<usize>,
    /// Connections of all peers without a header, over all workers; `None` for a share of all connections.
    pub pending: Option<usize>,
}

impl Default for HeaderLimits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            max_len: 4096,
            policy: HeaderPolicy::default(),
            pending_per_peer: None,
            pending: None,
        }
    }
}

impl HeaderLimits {
    /// Checks the size and the form of a complete and valid header.
    pub fn admit(&self, header: &Header<'_>) -> Result<(), HeaderError> {
        let (len, max) = (header.len, self.max_len);
        if len > max {
            return Err(HeaderError::TooLong { len, max });
        }
        // Another peername may have received as many TLVs as are allowed, and added its hop count.
        let has_hop_count = header.tlvs.iter().take(MAX_TLVS + 1).any(is_hop_count);
        let max_tlvs = MAX_TLVS + usize::from(has_hop_count);
        if header.tlvs.iter().nth(max_tlvs).is_some() {
            return Err(HeaderError::TooManyTlvs { max: MAX_TLVS });
        }
        self.policy.admit(header).map_err(HeaderError::Refused)
    }
}

/// Bounds the work per connection and datagram, even where `--max-header` admits 21,000 empty TLVs. The specification names
/// a dozen types, and vendors add one or two. The hop count of another peername is not counted.
const MAX_TLVS: usize = 64;

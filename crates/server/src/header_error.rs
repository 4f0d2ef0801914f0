//! The reasons to refuse the header of a connection or a datagram.

use std::io;
use std::time::Duration;

use peername_proto::{HeaderRefusal, Invalid, ProtocolGuess};

/// The reason to refuse a header, or an error of reading it.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// Too many connections are waiting for their header already.
    #[error("too many connections without a header, of this peer or in all")]
    TooManyPending,
    /// The header was not complete at its deadline.
    #[error(
        "no complete header within {after:?}, only {received} bytes of one; {}",
        if *received == 0 { NO_BYTES_HINT } else { "the sender must write it in one piece" }
    )]
    Timeout {
        /// The time allowed.
        after: Duration,
        /// Bytes received so far.
        received: usize,
    },
    /// The peer closed the connection before the header was complete.
    #[error("the peer closed after {received} bytes of a header")]
    Truncated {
        /// Bytes received so far.
        received: usize,
    },
    /// The bytes are not a header.
    #[error("{invalid}{}", guess_suffix(*guess))]
    Invalid {
        /// The fault of the bytes.
        invalid: Invalid,
        /// The protocol that the bytes resemble.
        guess: Option<ProtocolGuess>,
    },
    /// The header names UDP as the client's transport.
    #[error(
        "a header of a UDP client on a TCP connection; the sender must name the transport it carries"
    )]
    OtherTransport,
    /// The header claims a length above `--max-header`.
    #[error("a header of at least {len} bytes, and --max-header is {max}")]
    TooLong {
        /// The length claimed so far, in bytes.
        len: usize,
        /// The limit, in bytes.
        max: usize,
    },
    /// The header has more TLVs than any sender needs.
    #[error("a header of more than {max} TLVs")]
    TooManyTlvs {
        /// The limit.
        max: usize,
    },
    /// The header policy refuses the header.
    #[error("{}", with_option(*.0))]
    Refused(HeaderRefusal),
    /// Reading from the peer failed.
    #[error("recv(2) from the peer: {0}")]
    Read(io::Error),
}

impl HeaderError {
    /// Whether the peer closed the connection before it sent a byte, or reset it. TCP health checks do that, so the operator
    /// need not be warned.
    pub fn is_empty_connection(&self) -> bool {
        matches!(self, Self::Truncated { received: 0 } | Self::Read(_))
    }

    /// The stable reason code for metrics and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::TooManyPending => "too_many_pending",
            Self::Timeout { .. } => "header_timeout",
            Self::Truncated { received: 0 } => "closed_without_header",
            Self::Truncated { .. } => "header_truncated",
            Self::Invalid { invalid, .. } => invalid.reason(),
            Self::OtherTransport => "datagram_transport",
            Self::TooLong { .. } => "header_too_long",
            Self::TooManyTlvs { .. } => "too_many_tlvs",
            Self::Refused(refusal) => refusal.reason(),
            Self::Read(_) => "downstream_reset",
        }
    }
}

/// The end of an error text, which names the protocol that the bytes resemble.
fn guess_suffix(guess: Option<ProtocolGuess>) -> String {
    guess.map_or_else(String::new, |guess| format!("; it looks like {guess}"))
}

/// A refusal, and the option that causes it.
fn with_option(refusal: HeaderRefusal) -> String {
    match refusal {
        HeaderRefusal::WithoutAddress => refusal.to_string(),
        HeaderRefusal::WithoutClient => format!("{refusal}, which --without-client refuses"),
        HeaderRefusal::Deviation(_) => format!("{refusal}, which --strict-header refuses"),
    }
}

const NO_BYTES_HINT: &str = "turn it on at the balancer (send-proxy-v2 in HAProxy); where the server speaks first, a balancer \
    that sends it only after the client's first byte (AWS NLB without on_first_ack) never does";

#[cfg(test)]
mod tests {
    use peername_proto::Deviation;

    use super::*;

    #[test]
    fn refusals_name_their_option() {
        let deviation = HeaderRefusal::Deviation(Deviation::SourcePortZero);
        for (refusal, text) in [
            (deviation, "source port 0, which --strict-header refuses"),
            (
                HeaderRefusal::WithoutClient,
                "a header without a client (LOCAL or UNKNOWN), which --without-client refuses",
            ),
        ] {
            assert_eq!(HeaderError::Refused(refusal).to_string(), text);
        }
    }
}

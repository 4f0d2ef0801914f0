//! A request to the header waiter: one message on a new socket. A process gets the socket by a system call with the
//! arguments [`OPEN_CHANNEL`], which the supervisor answers with a descriptor.
//!
//! A request has no identifiers: it passes its sockets (SCM_RIGHTS), and the header waiter queries the kernel about them.

use crate::settings::SpareArguments;

/// A message to the header waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaiterRequest {
    /// Park the first passed socket, a connection, until its header is complete. The second is its listener. No answer.
    Park,
    /// Hand over a ready connection of the passed listener (its header is complete). The answer is one byte, with the
    /// connection if there is one; the handoff is complete once the requester has sent a byte back.
    Take,
    /// The passed socket, of the program, listens now. No answer.
    Listening,
    /// Free the slots of sockets that are closed. No answer.
    Sweep,
    /// Read the refusals ([`crate::RefusalReader`]). No answer.
    Log,
}

/// The fifth and sixth argument of a getpeername(2) without a socket, by which a process asks the supervisor for a channel
/// to the header waiter. These need not be secret: only a process with the seccomp filter reaches the supervisor by them.
pub const OPEN_CHANNEL: SpareArguments = [
    u64::from_be_bytes(*b"peername"),
    u64::from_be_bytes(*b"channel?"),
];

impl WaiterRequest {
    /// The maximum number of descriptors of a request.
    pub const MAX_DESCRIPTORS: usize = 2;

    /// Encodes the request.
    pub fn to_bytes(self) -> [u8; 1] {
        match self {
            Self::Park => *b"P",
            Self::Take => *b"T",
            Self::Listening => *b"N",
            Self::Sweep => *b"S",
            Self::Log => *b"L",
        }
    }

    /// Decodes a request; `None` if the bytes are not a request.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match bytes {
            b"P" => Some(Self::Park),
            b"T" => Some(Self::Take),
            b"N" => Some(Self::Listening),
            b"S" => Some(Self::Sweep),
            b"L" => Some(Self::Log),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_encoding_and_decoding() {
        let requests = (0..=u8::MAX).filter_map(|byte| WaiterRequest::from_bytes(&[byte]));
        assert_eq!(requests.clone().count(), 5);
        for request in requests {
            assert_eq!(
                WaiterRequest::from_bytes(&request.to_bytes()),
                Some(request)
            );
        }
        assert_eq!(WaiterRequest::from_bytes(b"PP"), None);
    }
}

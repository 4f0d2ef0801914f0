//! The token of an event: its subject, in the 64 bits that epoll(7) keeps for a registration.

/// The subject of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EpollToken {
    /// A call waits for an answer, or the last process with the filter has exited.
    Calls,
    /// The supervisor's monitor has exited.
    MonitorExited,
    /// The header waiter has something due.
    Waiter,
    /// A process with the library has a request for the header waiter.
    Channels,
    /// The admin endpoint's process asks whether the event loop runs, or has exited.
    Admin,
    /// The agent has ended, or asks the supervisor to end.
    Stop,
    /// The listener of a pending call is ready.
    ListenerReady(u64),
    /// The thread of a pending call has exited.
    ThreadExited(u64),
}

impl From<EpollToken> for u64 {
    fn from(token: EpollToken) -> Self {
        let (kind, serial) = match token {
            EpollToken::Calls => (0, 0),
            EpollToken::MonitorExited => (1, 0),
            EpollToken::Waiter => (2, 0),
            EpollToken::ListenerReady(serial) => (3, serial),
            EpollToken::ThreadExited(serial) => (4, serial),
            EpollToken::Channels => (5, 0),
            EpollToken::Admin => (6, 0),
            EpollToken::Stop => (7, 0),
        };
        // Serial numbers count up, one for each call, so the upper bits are free.
        serial << KIND_BITS | kind
    }
}

impl From<u64> for EpollToken {
    fn from(bits: u64) -> Self {
        let serial = bits >> KIND_BITS;
        match bits & ((1 << KIND_BITS) - 1) {
            1 => Self::MonitorExited,
            2 => Self::Waiter,
            3 => Self::ListenerReady(serial),
            4 => Self::ThreadExited(serial),
            5 => Self::Channels,
            6 => Self::Admin,
            7 => Self::Stop,
            _ => Self::Calls,
        }
    }
}

const KIND_BITS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_encoding_and_decoding() {
        for token in [
            EpollToken::Calls,
            EpollToken::MonitorExited,
            EpollToken::Waiter,
            EpollToken::Channels,
            EpollToken::Admin,
            EpollToken::Stop,
            EpollToken::ListenerReady(9),
            EpollToken::ThreadExited(1 << 40),
        ] {
            assert_eq!(EpollToken::from(u64::from(token)), token);
        }
    }
}

//! What an event is about, in the 64 bits that epoll(7) keeps for us.

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::notify) enum Token {
    /// A call wants an answer, or nobody is left to call.
    Calls,
    /// The guardian has ended.
    Guardian,
    /// The attendant has something to attend to.
    Attendant,
    /// A process with the library asks the attendant for something.
    Channel,
    /// The listener of a call that waits is ready.
    Wait(u64),
    /// The thread of a call that waits has ended.
    End(u64),
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        let (kind, serial) = match token {
            Token::Calls => (0, 0),
            Token::Guardian => (1, 0),
            Token::Attendant => (2, 0),
            Token::Wait(serial) => (3, serial),
            Token::End(serial) => (4, serial),
            Token::Channel => (5, 0),
        };
        // Serial numbers count up from 1, one a call.
        serial << KIND_BITS | kind
    }
}

impl From<u64> for Token {
    fn from(bits: u64) -> Self {
        let serial = bits >> KIND_BITS;
        match bits & ((1 << KIND_BITS) - 1) {
            1 => Self::Guardian,
            2 => Self::Attendant,
            3 => Self::Wait(serial),
            4 => Self::End(serial),
            5 => Self::Channel,
            _ => Self::Calls,
        }
    }
}

const KIND_BITS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comes_back() {
        for token in [
            Token::Calls,
            Token::Guardian,
            Token::Attendant,
            Token::Channel,
            Token::Wait(9),
            Token::End(1 << 40),
        ] {
            assert_eq!(Token::from(u64::from(token)), token);
        }
    }
}

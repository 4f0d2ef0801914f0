//! Whether a connection's header is complete: the state machine, without I/O.
//!
//! ```text
//!  start ──trusted──▶ Peek ──complete──▶ Store ──▶ Discard ──▶ Admit
//!    │                │  ▲
//!    │ untrusted      │  └── more has come ── Wait (incomplete)
//!    ▼                ▼
//!  PassThrough or Refuse (no header, or one that is not believed)
//! ```
//!
//! The library, the supervisor and the header waiter drive it, each by its own system calls: they execute a [`Step`], and
//! report the result to get the next one. The header is peeked at in the socket's receive queue and discarded only when it is
//! complete, so an incomplete header leaves the connection as it was. The identity is stored before the header is discarded, so
//! that the connection can be retried if the table is full.

use core::net::SocketAddr;

use peername_proto::{Carrier, Parsed, SourceRefusal, Transport, begins_like_header, parse};

use crate::settings::{Counter, Policy, Settings};
use crate::table::NotStored;

/// The next action on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Peek (MSG_PEEK), and report the bytes: [`HeaderCheck::peeked`].
    Peek,
    /// The header is incomplete: wait until at least this number of bytes has been received in all, then peek again.
    Wait(usize),
    /// Store the client and the destination, if the header names them, and report: [`HeaderCheck::stored`].
    Store {
        /// Bytes of the header.
        len: usize,
        /// The addresses to store; `None` if the header names none (LOCAL, UNKNOWN), or only its sender.
        named: Option<HeaderAddresses>,
    },
    /// Discard this number of bytes of the socket, and report: [`HeaderCheck::discarded`].
    Discard(usize),
    /// The header is discarded: count it ([`Counter::Accepted`]) and give the connection to the program.
    Admit,
    /// There is no header, and none is required: the program gets the connection as it is.
    PassThrough,
    /// Close the connection; the program must not get it.
    Refuse(Counter),
}

/// The result of a peek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peeked<'b> {
    /// The first bytes.
    Bytes(&'b [u8]),
    /// No bytes have been received yet.
    Nothing,
    /// The end of the stream, or an error.
    Closed,
}

/// The client and the destination that a header names.
pub type HeaderAddresses = (SocketAddr, SocketAddr);

/// The header check of one connection.
#[derive(Clone, Copy, Debug)]
pub struct HeaderCheck {
    policy: Policy,
    peer: SocketAddr,
}

impl HeaderCheck {
    /// Starts the check of a connection from `peer`, or starts it again after a wait for more of the header. Nothing is read
    /// from an untrusted peer.
    pub fn start(settings: Settings<'_>, peer: SocketAddr) -> (Self, Step) {
        let policy = settings.policy();
        let check = Self { policy, peer };
        let step = if settings.trusts(peer.ip()) {
            Step::Peek
        } else {
            check.without_header(Counter::Untrusted)
        };
        (check, step)
    }

    /// Reports the result of [`Step::Peek`].
    pub fn peeked(self, peeked: Peeked<'_>) -> Step {
        match peeked {
            Peeked::Bytes(bytes) => self.check_bytes(bytes),
            Peeked::Nothing => Step::Wait(1),
            // The peer closed the connection before its header was complete.
            Peeked::Closed => Step::Refuse(Counter::Closed),
        }
    }

    /// Reports the result of [`Step::Store`] for a header of `len` bytes.
    pub fn stored(self, len: usize, stored: Result<(), NotStored>) -> Step {
        match stored {
            Ok(()) => Step::Discard(len),
            Err(error) => Step::Refuse(error.counter()),
        }
    }

    /// Reports the result of [`Step::Discard`]: whether the whole header was discarded.
    pub fn discarded(self, complete: bool) -> Step {
        if complete {
            Step::Admit
        } else {
            Step::Refuse(Counter::Closed)
        }
    }

    /// The next step of a connection without a header, or from an untrusted peer.
    pub fn without_header(self, reason: Counter) -> Step {
        if self.policy.header_required {
            Step::Refuse(reason)
        } else {
            Step::PassThrough
        }
    }

    fn check_bytes(self, bytes: &[u8]) -> Step {
        let too_long = |len| len > self.policy.max_header;
        match parse(bytes, Carrier::Stream) {
            Ok(Parsed::Complete(header)) if too_long(header.len) => {
                Step::Refuse(Counter::NotAHeader)
            }
            // A header about a datagram does not describe this connection.
            Ok(Parsed::Complete(header)) if header.transport() == Some(Transport::Datagram) => {
                Step::Refuse(Counter::NotAHeader)
            }
            // Refused even where headers are optional, because a header was sent. The same holds for an inadmissible source
            // below.
            Ok(Parsed::Complete(header)) if self.policy.headers.admit(&header).is_err() => {
                Step::Refuse(Counter::HeaderRefused)
            }
            Ok(Parsed::Complete(header)) => {
                let len = header.len;
                match self.admit(header.source().zip(header.destination())) {
                    Ok(named) => Step::Store { len, named },
                    Err(_) => Step::Refuse(Counter::Source),
                }
            }
            Ok(Parsed::NeedMore(len)) if too_long(len) => Step::Refuse(Counter::NotAHeader),
            Ok(Parsed::NeedMore(len)) => Step::Wait(len),
            Err(_) if begins_like_header(bytes) => Step::Refuse(Counter::NotAHeader),
            Err(_) => self.without_header(Counter::NotAHeader),
        }
    }

    /// Applies the source policy to the claimed client. Of this host's addresses only loopback is recognized: the others
    /// would take a query to the kernel.
    fn admit(
        self,
        named: Option<HeaderAddresses>,
    ) -> Result<Option<HeaderAddresses>, SourceRefusal> {
        let Some((client, destination)) = named else {
            return Ok(None);
        };
        let sources = self.policy.sources;
        let client = sources.admit_claim(client, self.peer, |_| None)?;
        Ok(client.map(|client| (client, destination)))
    }
}

#[cfg(test)]
mod tests;

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
//! The library, the supervisor and the header waiter drive it, each by its own system calls: they do what a [`Step`]
//! says, and report the result to get the next one. The header is peeked at in the socket's own buffer and taken off only
//! when it is complete, so an incomplete one leaves the connection as it was. The identity is stored before the header is
//! discarded: a table without room then leaves the connection to be tried again.

use core::net::SocketAddr;

use peername_proto::{
    Carrier, InadmissibleSource, Parsed, SourcePolicy, Special, Transport, canonical, parse,
};

use crate::settings::{Counter, Policy, Settings};
use crate::table::Full;

/// What is to be done next with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Peek (MSG_PEEK), and report what is there: [`HeaderCheck::peeked`].
    Peek,
    /// The header is incomplete: wait until at least so many bytes are there in all, then peek again.
    Wait(usize),
    /// Store the client and the destination, if the header names them, and report: [`HeaderCheck::stored`].
    Store {
        /// Bytes of the header.
        len: usize,
        /// Client and destination; `None` if the header names none (LOCAL, UNKNOWN), or only its sender.
        named: Option<Ends>,
    },
    /// Take so many bytes off the socket, and report: [`HeaderCheck::discarded`].
    Discard(usize),
    /// The header is gone: count it ([`Counter::Accepted`]) and give the connection to the program.
    Admit,
    /// No header is there, and none is needed: the program gets the connection as it is.
    PassThrough,
    /// The program must not see it.
    Refuse(Counter),
}

/// What a peek has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peeked<'b> {
    /// The first bytes.
    Bytes(&'b [u8]),
    /// Nothing yet.
    Nothing,
    /// The end of the stream, or an error.
    Closed,
}

/// Client and destination.
pub type Ends = (SocketAddr, SocketAddr);

/// The check of one connection.
#[derive(Clone, Copy, Debug)]
pub struct HeaderCheck {
    policy: Policy,
    peer: SocketAddr,
}

impl HeaderCheck {
    /// For a connection from `peer` that was just accepted: may the peer send a header at all?
    pub fn start(settings: Settings<'_>, peer: SocketAddr) -> (Self, Step) {
        let check = Self::resume(settings, peer);
        let step = match settings.trusts(peer.ip()) {
            true => Step::Peek,
            false => check.policy.without_header(Counter::Untrusted),
        };
        (check, step)
    }

    /// For a connection that has waited for more of its header. The next step is [`Step::Peek`].
    pub fn resume(settings: Settings<'_>, peer: SocketAddr) -> Self {
        let policy = settings.policy();
        Self { policy, peer }
    }

    /// After [`Step::Peek`].
    pub fn peeked(self, peeked: Peeked<'_>) -> Step {
        match peeked {
            Peeked::Bytes(bytes) => self.judge(bytes),
            Peeked::Nothing => Step::Wait(1),
            // It has closed before its header was complete.
            Peeked::Closed => Step::Refuse(Counter::Closed),
        }
    }

    /// After [`Step::Store`] of a header of so many bytes.
    pub fn stored(self, len: usize, stored: Result<(), Full>) -> Step {
        match stored {
            Ok(()) => Step::Discard(len),
            Err(Full) => Step::Refuse(Counter::Full),
        }
    }

    /// After [`Step::Discard`]: whether all of the header was there to be taken.
    pub fn discarded(self, whole: bool) -> Step {
        match whole {
            true => Step::Admit,
            false => Step::Refuse(Counter::Closed),
        }
    }

    /// What becomes of the connection if it has no header.
    pub fn without_header(self, why: Counter) -> Step {
        self.policy.without_header(why)
    }

    fn judge(self, bytes: &[u8]) -> Step {
        let too_long = |len| len > self.policy.max_header;
        match parse(bytes, Carrier::Stream) {
            Ok(Parsed::Complete(header)) if too_long(header.len) => {
                Step::Refuse(Counter::NotAHeader)
            }
            // It is about something else than this connection.
            Ok(Parsed::Complete(header)) if header.transport() == Some(Transport::Datagram) => {
                Step::Refuse(Counter::NotAHeader)
            }
            Ok(Parsed::Complete(header)) => {
                let len = header.len;
                match self.admit(header.source().zip(header.destination())) {
                    Ok(named) => Step::Store { len, named },
                    // Also where headers are optional: there is one, and it is not to be believed.
                    Err(_) => Step::Refuse(Counter::Source),
                }
            }
            Ok(Parsed::NeedMore(len)) if too_long(len) => Step::Refuse(Counter::NotAHeader),
            Ok(Parsed::NeedMore(len)) => Step::Wait(len),
            Err(_) => self.policy.without_header(Counter::NotAHeader),
        }
    }

    /// Applies the source policy to the named client. This host's addresses besides loopback are not known here, where
    /// the kernel is not asked.
    fn admit(self, named: Option<Ends>) -> Result<Option<Ends>, InadmissibleSource> {
        let Some((client, _)) = named else {
            return Ok(None);
        };
        let sources = self.policy.sources;
        match sources.admit(client.ip(), |_| None) {
            // No client has port 0, and none can be connected to it.
            Ok(()) if client.port() == 0 && sources != SourcePolicy::Any => {
                Err(InadmissibleSource::Special(Special::Unspecified))
            }
            Ok(()) => Ok(named),
            // A balancer on this host that says where its own connection comes from: in version 1 a health check has no
            // other words.
            Err(InadmissibleSource::Special(Special::Loopback))
                if canonical(client) == canonical(self.peer) =>
            {
                Ok(None)
            }
            Err(refusal) => Err(refusal),
        }
    }
}

impl Policy {
    /// What becomes of a connection that has no header, or from whose peer none is taken.
    fn without_header(self, why: Counter) -> Step {
        match self.header_required {
            true => Step::Refuse(why),
            false => Step::PassThrough,
        }
    }
}

#[cfg(test)]
mod tests;

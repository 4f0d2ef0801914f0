//! What the first octets of a connection mean under a policy.

use core::net::SocketAddr;

use peername_proto::{Carrier, Parsed, Transport, parse};

use crate::settings::{Counter, Policy};

/// What is to be done with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Take so many octets off it, and remember the client if the header names one.
    Header {
        /// Octets of the header.
        len: usize,
        /// Client and destination; `None` if the header speaks for nobody (LOCAL, UNKNOWN), or only for
        /// who sent it.
        named: Option<(SocketAddr, SocketAddr)>,
    },
    /// Wait: the header takes at least so many octets in all.
    Unfinished(usize),
    /// It has no header and needs none.
    Plain,
    /// Refuse it.
    Refuse(Counter),
}

impl Policy {
    /// Judges what a peer that may send headers has sent so far.
    pub fn judge(self, bytes: &[u8], peer: SocketAddr) -> Verdict {
        let too_long = |len| len > self.max_header;
        match parse(bytes, Carrier::Stream) {
            Ok(Parsed::Complete(header)) if too_long(header.len) => {
                Verdict::Refuse(Counter::NotAHeader)
            }
            // It is about something else than this connection.
            Ok(Parsed::Complete(header)) if header.transport() == Some(Transport::Datagram) => {
                Verdict::Refuse(Counter::NotAHeader)
            }
            Ok(Parsed::Complete(header)) => {
                let named = header.source().zip(header.destination());
                match self.sources.admit(named, peer) {
                    Ok(named) => Verdict::Header {
                        len: header.len,
                        named,
                    },
                    // Also where headers are optional: there is one, and it is not to be believed.
                    Err(_) => Verdict::Refuse(Counter::Source),
                }
            }
            Ok(Parsed::NeedMore(len)) if too_long(len) => Verdict::Refuse(Counter::NotAHeader),
            Ok(Parsed::NeedMore(len)) => Verdict::Unfinished(len),
            Err(_) => self.without_header(Counter::NotAHeader),
        }
    }

    /// What becomes of a connection that has no header, or from whose peer none is taken.
    pub fn without_header(self, why: Counter) -> Verdict {
        match self.header_required {
            true => Verdict::Refuse(why),
            false => Verdict::Plain,
        }
    }
}

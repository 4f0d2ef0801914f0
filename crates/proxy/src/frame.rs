//! The second stage: a complete header, taken off the connection to the octet.
//!
//! It is read together with the client's first octets, where they came with it: they go along to the relay, which sends
//! them first. A connection that waits for its header holds no buffer of ours; only a header that arrives in pieces is
//! collected.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use peername_proto::{Carrier, Invalid, Parsed, Transport, guess_protocol, parse};
use peername_relay::Ahead;
use peername_sys::event::readiness::{clear_ready, is_transient};
use peername_sys::netlink;
use peername_sys::tcp::stream::{self, Received};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::accept::{Accepted, refuse};
use crate::addr::{ClaimedSource, LocalAddr, PeerAddr, canonical};
use crate::config::{Config, HeaderLimits};
use crate::log::{Tlvs, tlvs};
use crate::outcome::Failure;
use crate::pending::Pending;
use crate::permit::Claims;
use crate::preface;

/// A connection whose header has been read and believed to be one.
#[derive(Debug)]
pub struct Framed {
    pub(crate) stream: TcpStream,
    /// The client, as the header has it; `None` when the header speaks for nobody.
    pub claim: Option<ClaimedSource>,
    /// Where the client connected to, as the header has it.
    pub destination: Option<SocketAddr>,
    /// Through how many proxies it came, as far as the header tells.
    pub(crate) hops: u8,
    /// Who is really at the other end.
    pub peer: PeerAddr,
    /// The address listened on.
    pub listener: LocalAddr,
    /// The header for the backend, where it wants one.
    pub(crate) preface: Option<Box<[u8]>>,
    /// The client's first octets, as far as they came with the header.
    pub(crate) ahead: Ahead,
    /// What the log was asked to show.
    pub(crate) tlvs: Option<Box<Tlvs>>,
}

impl Framed {
    /// Reads the header, in however many pieces it comes, until its time is over. A connection that has to be waited
    /// for takes one of the `pending` places meanwhile.
    ///
    /// # Errors
    ///
    /// Whatever is not a complete and valid header of allowed size in time, or [`Failure::TooManyPending`]; the
    /// connection is reset.
    pub(crate) async fn read(
        accepted: Accepted,
        config: &Config,
        pending: &Pending,
    ) -> Result<Self, Failure> {
        let Accepted {
            stream,
            peer,
            listener,
        } = accepted;
        let mut reader = Reader::new(&stream, &config.header, Payload::Taken);
        let keep = |header: &peername_proto::Header<'_>| Header::keep(header, config);
        // Mostly it is there when the connection is: then it is neither waited for nor counted.
        let header = match reader.look(FIRST_LOOK, keep) {
            Ok(Look::Complete(header, ahead)) => Ok((header, ahead)),
            Ok(Look::Wanted(wanted)) => match pending.enter(peer.ip(), &config.header) {
                Some(_place) => reader.rest_in_time(wanted, keep).await,
                None => Err(Failure::TooManyPending),
            },
            Err(failure) => Err(failure),
        };
        match header {
            Ok((
                Header {
                    claim,
                    destination,
                    hops,
                    preface,
                    tlvs,
                },
                ahead,
            )) => Ok(Self {
                stream,
                claim,
                destination,
                hops,
                peer,
                listener,
                preface,
                ahead,
                tlvs,
            }),
            Err(failure) => Err(refuse(&stream, failure)),
        }
    }

    /// Tells the backend nothing of the client either, when nobody is what came of the claim.
    pub(crate) fn speak_for_nobody(&mut self, config: &Config) {
        if self.claim.take().is_some() {
            self.preface = config.upstream.send_proxy.map(preface::nobodys);
        }
    }
}

impl Claims for Framed {
    fn claim(&self) -> Option<ClaimedSource> {
        self.claim
    }

    fn peer(&self) -> PeerAddr {
        self.peer
    }

    fn destination(&self) -> Option<SocketAddr> {
        self.destination
    }

    fn hops(&self) -> u8 {
        self.hops
    }

    fn transport(&self) -> netlink::Transport {
        netlink::Transport::Tcp
    }
}

/// What outlives the header's bytes.
struct Header {
    claim: Option<ClaimedSource>,
    destination: Option<SocketAddr>,
    hops: u8,
    preface: Option<Box<[u8]>>,
    tlvs: Option<Box<Tlvs>>,
}

/// Reads a header, and nothing behind it, off a connection that is to be served in another way than the stages
/// here do, and tells whom it speaks for; `None` where it speaks for nobody. The caller knows that the peer is trusted, and
/// how long it may take.
///
/// # Errors
///
/// Whatever is not a complete and valid header of allowed size.
pub async fn claim(
    stream: &TcpStream,
    limits: &HeaderLimits,
) -> Result<Option<ClaimedSource>, Failure> {
    let mut reader = Reader::new(stream, limits, Payload::Left);
    let claim =
        |header: &peername_proto::Header<'_>| Ok(header.source().map(ClaimedSource::canonical));
    match reader.look(FIRST_LOOK, claim)? {
        Look::Complete(claim, _) => Ok(claim),
        Look::Wanted(wanted) => Ok(reader.rest(wanted, claim).await?.0),
    }
}

/// What becomes of the octets behind a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payload {
    /// They are read with it.
    Taken,
    /// They stay in the socket's buffer: the header is looked at there (MSG_PEEK), then taken off.
    Left,
}

/// Reads one header.
struct Reader<'s> {
    stream: &'s TcpStream,
    limits: &'s HeaderLimits,
    payload: Payload,
    /// Of a header that comes in pieces, those that came.
    collected: Vec<u8>,
}

enum Look<T> {
    /// With what came behind it.
    Complete(T, Ahead),
    /// So many octets at the next look.
    Wanted(usize),
}

impl<'s> Reader<'s> {
    fn new(stream: &'s TcpStream, limits: &'s HeaderLimits, payload: Payload) -> Self {
        Self {
            stream,
            limits,
            payload,
            collected: Vec::new(),
        }
    }

    /// As [`Reader::rest`], until the header's time is over.
    async fn rest_in_time<T>(
        &mut self,
        wanted: usize,
        keep: impl Fn(&peername_proto::Header<'_>) -> Result<T, Failure>,
    ) -> Result<(T, Ahead), Failure> {
        let after = self.limits.timeout;
        let header = timeout(after, self.rest(wanted, keep)).await;
        header.unwrap_or_else(|_| {
            let received = self.collected.len();
            Err(Failure::HeaderTimeout { after, received })
        })
    }

    /// Waits for the rest of a header, of which `wanted` octets are looked at first; `keep` makes of it what outlives its bytes.
    async fn rest<T>(
        &mut self,
        mut wanted: usize,
        keep: impl Fn(&peername_proto::Header<'_>) -> Result<T, Failure>,
    ) -> Result<(T, Ahead), Failure> {
        loop {
            self.stream.readable().await.map_err(Failure::Downstream)?;
            match self.look(wanted, &keep)? {
                Look::Complete(header, ahead) => return Ok((header, ahead)),
                Look::Wanted(more) => wanted = more,
            }
        }
    }

    /// Looks at `wanted` more octets behind those collected. An incomplete header is collected, all of
    /// it being header.
    fn look<T>(
        &mut self,
        wanted: usize,
        keep: impl Fn(&peername_proto::Header<'_>) -> Result<T, Failure>,
    ) -> Result<Look<T>, Failure> {
        BUFFER.with_borrow_mut(|buffer| {
            let had = self.collected.len();
            buffer.clear();
            buffer.extend_from_slice(&self.collected);
            buffer.resize(had + wanted, 0);
            let Received { len, more } = match self.receive(buffer.get_mut(had..)) {
                Ok(Received { len: 0, .. }) => {
                    return Err(Failure::HeaderTruncated { received: had });
                }
                Ok(received) => received,
                Err(error) if is_transient(&error) => {
                    self.wait_for_more();
                    return Ok(Look::Wanted(wanted));
                }
                Err(error) => return Err(Failure::Downstream(error)),
            };
            buffer.truncate(had + len);
            let max = self.limits.max_len;
            match parse(buffer, Carrier::Stream).map_err(|invalid| not_a_header(invalid, buffer))? {
                Parsed::Complete(header) => {
                    self.limits.admit(&header)?;
                    if header.transport() == Some(Transport::Datagram) {
                        return Err(Failure::OtherTransport);
                    }
                    self.take_off(header.len - had)?;
                    let ahead = self.ahead(buffer.get(header.len..).unwrap_or_default(), more);
                    Ok(Look::Complete(keep(&header)?, ahead))
                }
                Parsed::NeedMore(len) if len > max => Err(Failure::HeaderTooLong { len, max }),
                Parsed::NeedMore(wanted) => {
                    self.take_off(len)?;
                    self.collected
                        .extend_from_slice(buffer.get(had..).unwrap_or_default());
                    Ok(Look::Wanted(
                        (wanted - self.collected.len()).max(FIRST_LOOK),
                    ))
                }
            }
        })
    }

    fn receive(&self, buffer: Option<&mut [u8]>) -> io::Result<Received> {
        let buffer = buffer.unwrap_or_default();
        if self.payload == Payload::Left {
            return stream::peek(self.stream, buffer).map(|len| Received { len, more: true });
        }
        let received = stream::recv(self.stream, buffer)?;
        if !received.more {
            self.wait_for_more();
        }
        Ok(received)
    }

    /// Takes so many octets that have been looked at off the socket, where they are still there.
    fn take_off(&self, mut len: usize) -> Result<(), Failure> {
        while len > 0 && self.payload == Payload::Left {
            match stream::discard(self.stream, len).map_err(Failure::Downstream)? {
                0 => return Err(Failure::Downstream(ErrorKind::UnexpectedEof.into())),
                n => len -= n,
            }
        }
        Ok(())
    }

    /// What was read with the header.
    fn ahead(&self, behind: &[u8], is_followed: bool) -> Ahead {
        match self.payload {
            Payload::Left => Ahead::default(),
            Payload::Taken => Ahead {
                octets: behind.into(),
                sent: 0,
                is_followed,
            },
        }
    }

    /// Tells tokio that there is nothing left to read.
    fn wait_for_more(&self) {
        clear_ready(self.stream, Interest::READABLE);
    }
}

impl Header {
    fn keep(header: &peername_proto::Header<'_>, config: &Config) -> Result<Self, Failure> {
        let dynamic = config.destinations.is_some();
        let hops = if dynamic { preface::hops(header) } else { 0 };
        let counted = dynamic.then_some(hops);
        let send = config.upstream.send_proxy;
        let preface = send.map(|version| preface::write(header, version, counted));
        Ok(Self {
            claim: header.source().map(ClaimedSource::canonical),
            destination: header.destination().map(canonical),
            hops,
            preface: preface.transpose().map_err(Failure::Header)?,
            tlvs: tlvs(header, &config.log_tlvs),
        })
    }
}

fn not_a_header(invalid: Invalid, bytes: &[u8]) -> Failure {
    Failure::HeaderInvalid {
        invalid,
        guess_protocol: guess_protocol(bytes),
    }
}

/// Holds every header that balancers send in practice; looking at more would copy payload for nothing.
const FIRST_LOOK: usize = 1024;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

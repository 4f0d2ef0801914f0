//! The second stage: a complete header, taken off the connection to the octet.
//!
//! The header is looked at in the socket's own buffer (MSG_PEEK) and then taken off it, so that the
//! payload behind it is never touched here: nothing has to be carried along, and a connection that
//! waits for its header holds no buffer of ours. Only a header that arrives in pieces is collected,
//! octet by octet received.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use peername_proto::{Carrier, Invalid, Parsed, looks_like, parse};
use peername_sys::{netlink, stream};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout_at;

use crate::accept::{Accepted, refuse};
use crate::addr::{ClaimedSource, LocalAddr, PeerAddr, canonical};
use crate::config::{Config, HeaderLimits};
use crate::log::{Tlvs, tlvs};
use crate::outcome::Failure;
use crate::permit::Claims;
use crate::preface;

/// A connection whose header has been read and believed to be one. The socket's next octet is the
/// client's first.
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
    /// Whether the client's first octets were there with the header.
    pub(crate) is_followed: bool,
    /// What the log was asked to show.
    pub(crate) tlvs: Option<Box<Tlvs>>,
}

impl Framed {
    /// Reads the header, in however many pieces it comes, until the deadline set at accept.
    ///
    /// # Errors
    ///
    /// Whatever is not a complete and valid header of allowed size in time; the connection is reset.
    pub async fn read(accepted: Accepted, config: &Config) -> Result<Self, Failure> {
        let Accepted {
            stream,
            deadline,
            place,
            peer,
            listener,
        } = accepted;
        let mut collected = Vec::new();
        let keep = |header: &peername_proto::Header<'_>| Header::keep(header, config);
        let header = read(&stream, &mut collected, &config.header, &keep);
        let header = timeout_at(deadline, header).await;
        drop(place);
        let header = header.unwrap_or_else(|_| {
            let (after, received) = (config.header.timeout, collected.len());
            Err(Failure::HeaderTimeout { after, received })
        });
        match header {
            Ok((
                Header {
                    claim,
                    destination,
                    hops,
                    preface,
                    tlvs,
                },
                is_followed,
            )) => Ok(Self {
                stream,
                claim,
                destination,
                hops,
                peer,
                listener,
                preface,
                is_followed,
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

/// Reads a header off a connection that is to be served in another way than the stages here do, and tells
/// whom it speaks for; `None` where it speaks for nobody. The caller knows that the peer is trusted, and
/// how long it may take.
///
/// # Errors
///
/// Whatever is not a complete and valid header of allowed size.
pub async fn claim(
    stream: &TcpStream,
    limits: &HeaderLimits,
) -> Result<Option<ClaimedSource>, Failure> {
    let keep =
        |header: &peername_proto::Header<'_>| Ok(header.source().map(ClaimedSource::canonical));
    let (claim, _) = read(stream, &mut Vec::new(), limits, &keep).await?;
    Ok(claim)
}

/// Keeps of a header what outlives its bytes.
type Keep<'a, T> = &'a (dyn Fn(&peername_proto::Header<'_>) -> Result<T, Failure> + Sync);

/// Also tells whether the client's first octets were there with the header.
async fn read<T>(
    stream: &TcpStream,
    collected: &mut Vec<u8>,
    limits: &HeaderLimits,
    keep: Keep<'_, T>,
) -> Result<(T, bool), Failure> {
    let mut wanted = FIRST_LOOK;
    // Mostly it is there when the connection is: the first look waits for no event.
    let mut waits = false;
    loop {
        if waits {
            stream.readable().await.map_err(Failure::Downstream)?;
        }
        waits = true;
        match look(stream, collected, wanted, limits, keep) {
            Ok(Look::Complete(header, is_followed)) => return Ok((header, is_followed)),
            Ok(Look::Wanted(more)) => wanted = more,
            Err(failure) => return Err(failure),
        }
    }
}

enum Look<T> {
    /// And whether something follows.
    Complete(T, bool),
    /// So many octets at the next look.
    Wanted(usize),
}

/// Looks at `wanted` more octets behind those collected. An incomplete header is collected, all of
/// it being header; a complete one is taken off the socket.
fn look<T>(
    stream: &TcpStream,
    collected: &mut Vec<u8>,
    wanted: usize,
    limits: &HeaderLimits,
    keep: Keep<'_, T>,
) -> Result<Look<T>, Failure> {
    BUFFER.with_borrow_mut(|buffer| {
        let had = collected.len();
        buffer.clear();
        buffer.extend_from_slice(collected);
        buffer.resize(had + wanted, 0);
        let fresh = buffer.get_mut(had..).unwrap_or_default();
        let n = match stream::peek(stream, fresh) {
            Ok(0) => return Err(Failure::HeaderTruncated { received: had }),
            Ok(n) => n,
            Err(error) if is_transient(&error) => {
                let _ = stream.try_io(Interest::READABLE, || Err::<(), _>(error));
                return Ok(Look::Wanted(wanted));
            }
            Err(error) => return Err(Failure::Downstream(error)),
        };
        buffer.truncate(had + n);
        let max = limits.max_len;
        match parse(buffer, Carrier::Stream).map_err(|invalid| not_a_header(invalid, buffer))? {
            Parsed::Complete(header) => {
                limits.admit(&header)?;
                take(stream, header.len - had).map_err(Failure::Downstream)?;
                let is_followed = buffer.len() > header.len;
                keep(&header).map(|header| Look::Complete(header, is_followed))
            }
            Parsed::NeedMore(len) if len > max => Err(Failure::HeaderTooLong { len, max }),
            Parsed::NeedMore(len) => {
                take(stream, n).map_err(Failure::Downstream)?;
                collected.extend_from_slice(buffer.get(had..).unwrap_or_default());
                Ok(Look::Wanted((len - collected.len()).max(FIRST_LOOK)))
            }
        }
    })
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

/// Takes `len` octets that have just been seen off the socket.
fn take(stream: &TcpStream, mut len: usize) -> io::Result<()> {
    while len > 0 {
        match stream::discard(stream, len)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => len -= n,
        }
    }
    Ok(())
}

fn not_a_header(invalid: Invalid, bytes: &[u8]) -> Failure {
    Failure::HeaderInvalid {
        invalid,
        looks_like: looks_like(bytes),
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Holds every header that balancers send in practice; looking at more would copy payload for nothing.
const FIRST_LOOK: usize = 1024;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

//! What a connection begins with: TLS, HTTP, or something that nobody here can look into.

use std::io;

use http::StatusCode;
use rustls::ProtocolVersion;
use rustls::server::{Accepted, Acceptor};
use tokio::time::{Instant, timeout_at};

use crate::host::Host;
use crate::ca::mint::Offer;
use crate::request::refusal::Refusal;
use crate::stream::prefixed::Wire;

/// What a client begins with.
pub(crate) enum Opening {
    Tls(Box<Hello>),
    /// HTTP/1, as far as its first line tells.
    Http,
    /// Anything else, silence included.
    Unknown,
}

/// A ClientHello. Its octets are still ahead on the wire.
pub(crate) struct Hello {
    pub(crate) accepted: Accepted,
    pub(crate) sni: Option<Host>,
    pub(crate) offer: Offer,
    /// Whether HTTP/2 is among the protocols offered.
    pub(crate) http2: bool,
    /// Whether HTTP/1.1 is, which it also is where none is named.
    pub(crate) http1: bool,
}

/// Why a connection came to nothing before there was a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unopened {
    #[error("the client closed the connection")]
    Closed,
    #[error("reading from the client: {0}")]
    Read(#[from] io::Error),
    #[error("not a ClientHello: {0}")]
    NotAHello(rustls::Error),
    #[error("a ClientHello of more than {MOST} octets")]
    TooLong,
    #[error("no complete ClientHello in time")]
    Late,
}

#[cfg(feature = "fuzzing")]
impl Opening {
    pub(crate) fn guess_protocol(bytes: &[u8]) -> Option<&'static str> {
        match first_look(bytes) {
            Look::Tls => Some("tls"),
            Look::Http => Some("http"),
            Look::Unknown => Some("unknown"),
            Look::More => None,
        }
    }
}

impl Unopened {
    pub(crate) fn refusal(&self) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, "client_tls", self.to_string())
    }
}

impl Opening {
    /// Reads as much as it takes to tell, and takes nothing off the wire. Half a first line is no reason to
    /// give up or to guess: it waits for more, until the deadline.
    pub(crate) async fn read(wire: &mut Wire, deadline: Instant) -> Result<Self, Unopened> {
        loop {
            match first_look(wire.ahead()) {
                Look::Tls => {
                    let hello = timeout_at(deadline, Hello::read(wire)).await;
                    return hello.map_err(|_| Unopened::Late)?.map(Self::Tls);
                }
                Look::Http => return Ok(Self::Http),
                Look::Unknown => return Ok(Self::Unknown),
                Look::More => match timeout_at(deadline, wire.more()).await {
                    Err(_) => return Ok(Self::Unknown),
                    Ok(Err(error)) => return Err(error.into()),
                    Ok(Ok(0)) if wire.ahead().is_empty() => return Err(Unopened::Closed),
                    Ok(Ok(0)) => return Ok(Self::Unknown),
                    Ok(Ok(_)) => {}
                },
            }
        }
    }
}

/// Takes a ClientHello in as it comes.
#[derive(Default)]
pub(crate) struct Reader {
    acceptor: Acceptor,
    /// How many octets it has had.
    seen: usize,
}

impl Reader {
    /// The ClientHello, if the whole of it is there. `ahead` is all that has come; what was there the last time
    /// is not looked at again.
    pub(crate) fn look(&mut self, ahead: &[u8]) -> Result<Option<Box<Hello>>, Unopened> {
        let mut fresh = ahead.get(self.seen..).unwrap_or_default();
        while !fresh.is_empty() {
            self.acceptor.read_tls(&mut fresh)?;
        }
        self.seen = ahead.len();
        match self.acceptor.accept() {
            Ok(Some(accepted)) => Ok(Some(Box::new(Hello::new(accepted)))),
            Ok(None) if self.seen > MOST => Err(Unopened::TooLong),
            Ok(None) => Ok(None),
            Err((error, _)) => Err(Unopened::NotAHello(error)),
        }
    }
}

impl Hello {
    async fn read(wire: &mut Wire) -> Result<Box<Self>, Unopened> {
        let mut reader = Reader::default();
        loop {
            if let Some(hello) = reader.look(wire.ahead())? {
                return Ok(hello);
            }
            if wire.more().await? == 0 {
                return Err(Unopened::Closed);
            }
        }
    }

    fn new(accepted: Accepted) -> Self {
        let hello = accepted.client_hello();
        let offers = |name: &[u8]| {
            let mut all = hello.alpn()?;
            Some(all.any(|protocol| protocol == name))
        };
        let (http2, http1) = (offers(b"h2"), offers(b"http/1.1"));
        let sni = hello
            .server_name()
            .and_then(|name| Host::from_sni(name).ok());
        let offer = Offer::of(&hello);
        Self {
            sni,
            offer,
            http2: http2.unwrap_or(false),
            http1: http1.unwrap_or(true),
            accepted,
        }
    }
}

/// As in the audit line.
pub(crate) fn version_name(version: ProtocolVersion) -> &'static str {
    match version {
        ProtocolVersion::TLSv1_3 => "1.3",
        ProtocolVersion::TLSv1_2 => "1.2",
        _ => "?",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Tls,
    Http,
    Unknown,
    More,
}

/// A request line names its version at its end, which no other protocol's first line does.
fn first_look(bytes: &[u8]) -> Look {
    match bytes {
        [] | [HANDSHAKE] => return Look::More,
        [HANDSHAKE, 3, ..] => return Look::Tls,
        _ => {}
    }
    let is_of_a_method = |octet: &&u8| octet.is_ascii_alphanumeric() || b"-_".contains(octet);
    let method = bytes.iter().take_while(is_of_a_method).count();
    match bytes.get(method) {
        _ if method == 0 || method > LONGEST_METHOD => return Look::Unknown,
        None => return Look::More,
        Some(b' ') => {}
        Some(_) => return Look::Unknown,
    }
    let Some(end) = bytes.iter().position(|octet| *octet == b'\n') else {
        // So long a line can't be anything else, and its reader has a limit.
        return if bytes.len() > LONGEST_LINE {
            Look::Http
        } else {
            Look::More
        };
    };
    let line = bytes.get(..end).unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0") {
        true => Look::Http,
        false => Look::Unknown,
    }
}

/// The type of a TLS record (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;
/// UPDATEREDIRECTREF has 17 letters.
const LONGEST_METHOD: usize = 24;
const LONGEST_LINE: usize = 16 * 1024;
/// A handshake message can claim 16 MiB; what clients send has two.
const MOST: usize = 64 * 1024;

#[cfg(test)]
mod tests;

//! What a connection begins with: TLS, HTTP, or something that nobody here can look into.

use std::io;

use http::StatusCode;
use rustls::ProtocolVersion;
use rustls::server::{Accepted, Acceptor};
use tokio::time::{Instant, timeout_at};

use crate::host::Host;
use crate::leaf::Offer;
use crate::refusal::Refusal;
use crate::wire::Wire;

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

impl Hello {
    async fn read(wire: &mut Wire) -> Result<Box<Self>, Unopened> {
        let mut acceptor = Acceptor::default();
        let mut seen = 0;
        loop {
            let mut fresh = wire.ahead().get(seen..).unwrap_or_default();
            while !fresh.is_empty() {
                acceptor.read_tls(&mut fresh)?;
            }
            seen = wire.ahead().len();
            match acceptor.accept() {
                Ok(Some(accepted)) => return Ok(Box::new(Self::new(accepted))),
                Ok(None) if seen > MOST => return Err(Unopened::TooLong),
                Ok(None) => {}
                Err((error, _)) => return Err(Unopened::NotAHello(error)),
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
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_waited_for_until_it_tells() {
        for (bytes, expected) in [
            (&b""[..], Look::More),
            (b"\x16", Look::More),
            (b"\x16\x03", Look::Tls),
            (b"\x16\x02", Look::Unknown),
            (b"\x15\x03\x01", Look::Unknown),
            (b"G", Look::More),
            (b"POST", Look::More),
            (b"POST /x HTTP/1.", Look::More),
            (b"POST /x HTTP/1.1\r\n", Look::Http),
            (b"PROPFIND /x HTTP/1.0\n", Look::Http),
            (b"GET /x\r\n", Look::Unknown),
            (b"PRI * HTTP/2.0\r\n", Look::Unknown),
            (b"SSH-2.0-OpenSSH_9.2\r\n", Look::Unknown),
            (b"EHLO client.test\r\n", Look::Unknown),
            (b"\x00\x01", Look::Unknown),
        ] {
            assert_eq!(first_look(bytes), expected, "{}", bytes.escape_ascii());
        }
    }
}

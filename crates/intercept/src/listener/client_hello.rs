//! The first bytes of a connection: TLS, HTTP, or a protocol that the proxy does not know.

use std::io;

use http::StatusCode;
use rustls::server::{Accepted, Acceptor};
use tokio::time::{Instant, timeout_at};

use crate::ca::mint::client_support::ClientSupport;
use crate::host::Host;
use crate::request::refusal::Refusal;
use crate::stream::client_socket::ClientStream;

/// The protocol with which a client begins.
pub(crate) enum Opening {
    Tls(Box<ParsedClientHello>),
    /// HTTP/1, by the first line.
    Http,
    /// Anything else, silence included.
    Unknown,
}

/// A ClientHello. Its bytes are still the prefix of the stream.
pub(crate) struct ParsedClientHello {
    pub(crate) accepted: Accepted,
    pub(crate) sni: Option<Host>,
    pub(crate) support: ClientSupport,
    /// Whether HTTP/2 is among the protocols offered.
    pub(crate) http2: bool,
    /// Whether HTTP/1.1 is among the protocols offered, or the client offers none.
    pub(crate) http1: bool,
}

/// Why a connection ended before there was a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpeningError {
    #[error("the client closed the connection")]
    Closed,
    #[error("reading from the client: {0}")]
    Read(#[from] io::Error),
    #[error("not a ClientHello: {0}")]
    NotAClientHello(rustls::Error),
    #[error("no complete ClientHello in time")]
    Late,
}

#[cfg(feature = "fuzzing")]
impl Opening {
    pub(crate) fn classify(bytes: &[u8]) -> Option<&'static str> {
        match classify_first_bytes(bytes) {
            FirstBytes::Tls => Some("tls"),
            FirstBytes::Http => Some("http"),
            FirstBytes::Unknown => Some("unknown"),
            FirstBytes::Incomplete => None,
        }
    }
}

impl OpeningError {
    pub(crate) fn to_refusal(&self) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, "client_tls", self.to_string())
    }
}

impl Opening {
    /// Reads as many bytes as it takes to classify the connection, and leaves them in the stream's prefix. Waits for the rest
    /// of an incomplete first line, until the deadline.
    ///
    /// # Errors
    ///
    /// [`OpeningError`]: the client closed the connection, or began a TLS handshake that has no valid ClientHello in time.
    pub(crate) async fn read(
        stream: &mut ClientStream,
        deadline: Instant,
    ) -> Result<Self, OpeningError> {
        loop {
            match classify_first_bytes(stream.prefix()) {
                FirstBytes::Tls => {
                    let hello = timeout_at(deadline, ParsedClientHello::read(stream)).await;
                    return hello.map_err(|_| OpeningError::Late)?.map(Self::Tls);
                }
                FirstBytes::Http => return Ok(Self::Http),
                FirstBytes::Unknown => return Ok(Self::Unknown),
                FirstBytes::Incomplete => match timeout_at(deadline, stream.read_more()).await {
                    Err(_) => return Ok(Self::Unknown),
                    Ok(Err(error)) => return Err(error.into()),
                    Ok(Ok(0)) if stream.prefix().is_empty() => return Err(OpeningError::Closed),
                    Ok(Ok(0)) => return Ok(Self::Unknown),
                    Ok(Ok(_)) => {}
                },
            }
        }
    }
}

/// Parses a ClientHello as its bytes come. A handshake message can claim 16 MiB; rustls refuses one of more than 64 KiB as soon
/// as it has read the length.
#[derive(Default)]
pub(crate) struct ClientHelloReader {
    acceptor: Acceptor,
    /// How many bytes were fed so far.
    fed: usize,
}

impl ClientHelloReader {
    /// Returns the ClientHello once it is complete. `received` is everything that was received so far; bytes of earlier calls
    /// are not parsed again.
    pub(crate) fn feed(
        &mut self,
        received: &[u8],
    ) -> Result<Option<Box<ParsedClientHello>>, OpeningError> {
        let mut fresh = received.get(self.fed..).unwrap_or_default();
        while !fresh.is_empty() {
            // Reads a few KiB at most: the acceptor's buffer holds one record, until `accept` takes that out.
            self.acceptor.read_tls(&mut fresh)?;
            self.fed = received.len() - fresh.len();
            match self.acceptor.accept() {
                Ok(Some(accepted)) => return Ok(Some(Box::new(ParsedClientHello::new(accepted)))),
                Ok(None) => {}
                Err((error, _)) => return Err(OpeningError::NotAClientHello(error)),
            }
        }
        Ok(None)
    }
}

impl ParsedClientHello {
    async fn read(stream: &mut ClientStream) -> Result<Box<Self>, OpeningError> {
        let mut reader = ClientHelloReader::default();
        loop {
            if let Some(hello) = reader.feed(stream.prefix())? {
                return Ok(hello);
            }
            if stream.read_more().await? == 0 {
                return Err(OpeningError::Closed);
            }
        }
    }

    fn new(accepted: Accepted) -> Self {
        let hello = accepted.client_hello();
        // `None` if the client offers no protocols.
        let offers = |name: &[u8]| Some(hello.alpn()?.any(|protocol| protocol == name));
        let (http2, http1) = (offers(b"h2"), offers(b"http/1.1"));
        let sni = hello
            .server_name()
            .and_then(|name| Host::from_sni(name).ok());
        let support = ClientSupport::from_client_hello(&hello);
        Self {
            sni,
            support,
            http2: http2.unwrap_or(false),
            http1: http1.unwrap_or(true),
            accepted,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstBytes {
    Tls,
    Http,
    Unknown,
    Incomplete,
}

/// Classifies the first bytes. A request line ends with its version, which no other protocol's first line does.
fn classify_first_bytes(bytes: &[u8]) -> FirstBytes {
    match bytes {
        [] | [HANDSHAKE_RECORD] => return FirstBytes::Incomplete,
        [HANDSHAKE_RECORD, 3, ..] => return FirstBytes::Tls,
        _ => {}
    }
    let is_method_byte = |byte: &&u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
    let method_len = bytes.iter().take_while(is_method_byte).count();
    if method_len == 0 || method_len > MAX_METHOD {
        return FirstBytes::Unknown;
    }
    match bytes.get(method_len) {
        None => return FirstBytes::Incomplete,
        Some(b' ') => {}
        Some(_) => return FirstBytes::Unknown,
    }
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        // A line this long is HTTP in all likelihood, and the HTTP parser limits its length.
        return if bytes.len() > MAX_FIRST_LINE {
            FirstBytes::Http
        } else {
            FirstBytes::Incomplete
        };
    };
    let line = bytes.get(..end).unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0") {
        FirstBytes::Http
    } else {
        FirstBytes::Unknown
    }
}

/// The type of a TLS record (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;
/// Bytes of a method: UPDATEREDIRECTREF has 17 letters.
const MAX_METHOD: usize = 24;
/// Bytes of a first line that is awaited.
const MAX_FIRST_LINE: usize = 16 * 1024;

#[cfg(test)]
mod tests;

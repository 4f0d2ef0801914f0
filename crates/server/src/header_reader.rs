//! Reads the PROXY header off an accepted connection, before its deadline.
//!
//! [`read`] also returns the client's first bytes, if they came with the header; the relay sends them first.
//! [`read_claim`] leaves them in the socket. A connection that waits for its header has no buffer; only a header that
//! arrives in pieces gets one.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::IpAddr;

use peername_proto::{Carrier, Header, Invalid, Parsed, Transport, guess_protocol, parse};
use peername_relay::Prefix;
use peername_sys::event::readiness::{clear_ready, is_transient};
use peername_sys::tcp::stream::{self, Received};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::addr::ClaimedSource;
use crate::header_error::HeaderError;
use crate::header_limits::HeaderLimits;
use crate::pending_headers::PendingHeaders;

/// Reads a header, in however many pieces it arrives, and the bytes that follow it in the same read. `retain` copies
/// from the header what is needed later: the header's bytes are not kept.
///
/// A connection that waits for its header counts against the limits of `pending`. The caller has checked that the peer is
/// trusted.
///
/// # Errors
///
/// [`HeaderError`] where no complete and valid header of an allowed size arrives in time, or the error of `retain`.
pub async fn read<T, E: From<HeaderError>>(
    stream: &TcpStream,
    peer: IpAddr,
    limits: &HeaderLimits,
    pending: &PendingHeaders,
    retain: impl Fn(&Header<'_>) -> Result<T, E>,
) -> Result<(T, Prefix), E> {
    let mut reader = Reader::new(stream, limits, Payload::Read);
    // Usually the header has arrived by the time of accept(2): then the connection neither waits nor counts as pending.
    match reader.poll(FIRST_READ, &retain)? {
        Poll::Complete(retained, prefix) => Ok((retained, prefix)),
        Poll::Need(wanted) => match pending.enter(peer, limits) {
            Some(_pending) => reader.read_rest_in_time(wanted, retain).await,
            None => Err(HeaderError::TooManyPending.into()),
        },
    }
}

/// Reads a header and nothing behind it, and returns the source it claims; `None` for LOCAL and UNKNOWN.
///
/// The caller has checked that the peer is trusted, and enforces the deadline.
pub async fn read_claim(
    stream: &TcpStream,
    limits: &HeaderLimits,
) -> Result<Option<ClaimedSource>, HeaderError> {
    let mut reader = Reader::new(stream, limits, Payload::Left);
    let claim = |header: &Header<'_>| Ok(header.source().map(ClaimedSource::canonical));
    match reader.poll(FIRST_READ, claim)? {
        Poll::Complete(claim, _) => Ok(claim),
        Poll::Need(wanted) => Ok(reader.read_rest(wanted, claim).await?.0),
    }
}

/// The treatment of the bytes behind a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payload {
    /// Reads them with the header.
    Read,
    /// Leaves them in the socket's buffer: the header is peeked (MSG_PEEK), then discarded from it.
    Left,
}

/// The state of one header.
struct Reader<'s> {
    stream: &'s TcpStream,
    limits: &'s HeaderLimits,
    payload: Payload,
    /// The pieces received so far of a header that is not complete.
    collected: Vec<u8>,
}

enum Poll<T> {
    /// The result of `retain`, and the bytes behind the header.
    Complete(T, Prefix),
    /// The header is incomplete; the next poll reads this many bytes.
    Need(usize),
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

    /// [`Reader::read_rest`], within the header's deadline.
    async fn read_rest_in_time<T, E: From<HeaderError>>(
        &mut self,
        wanted: usize,
        retain: impl Fn(&Header<'_>) -> Result<T, E>,
    ) -> Result<(T, Prefix), E> {
        let after = self.limits.timeout;
        if let Ok(read) = timeout(after, self.read_rest(wanted, &retain)).await {
            return read;
        }
        // One wait of the runtime reports a limited number of sockets, so after a stop of the process (SIGSTOP) a header may have
        // come in time without an event.
        match self.poll(self.limits.max_len.max(FIRST_READ), &retain)? {
            Poll::Complete(retained, prefix) => Ok((retained, prefix)),
            Poll::Need(_) => {
                let received = self.collected.len();
                Err(HeaderError::Timeout { after, received }.into())
            }
        }
    }

    /// Waits for the rest of a header; the first poll reads `wanted` bytes.
    async fn read_rest<T, E: From<HeaderError>>(
        &mut self,
        mut wanted: usize,
        retain: impl Fn(&Header<'_>) -> Result<T, E>,
    ) -> Result<(T, Prefix), E> {
        loop {
            self.stream.readable().await.map_err(HeaderError::Read)?;
            match self.poll(wanted, &retain)? {
                Poll::Complete(retained, prefix) => return Ok((retained, prefix)),
                Poll::Need(more) => wanted = more,
            }
        }
    }

    /// Reads up to `wanted` more bytes and parses them with those collected before. If the header is still incomplete, collects
    /// them, too.
    fn poll<T, E: From<HeaderError>>(
        &mut self,
        wanted: usize,
        retain: impl Fn(&Header<'_>) -> Result<T, E>,
    ) -> Result<Poll<T>, E> {
        BUFFER.with_borrow_mut(|buffer| {
            let collected = self.collected.len();
            buffer.clear();
            buffer.extend_from_slice(&self.collected);
            buffer.resize(collected + wanted, 0);
            let Received { len, more } = match self.receive(buffer.get_mut(collected..)) {
                Ok(Received { len: 0, .. }) => {
                    return Err(HeaderError::Truncated {
                        received: collected,
                    }
                    .into());
                }
                Ok(received) => received,
                Err(error) if is_transient(&error) => {
                    self.clear_readiness();
                    return Ok(Poll::Need(wanted));
                }
                Err(error) => return Err(HeaderError::Read(error).into()),
            };
            buffer.truncate(collected + len);
            let max = self.limits.max_len;
            match parse(buffer, Carrier::Stream).map_err(|invalid| not_a_header(invalid, buffer))? {
                Parsed::Complete(header) => {
                    self.limits.admit(&header)?;
                    if header.transport() == Some(Transport::Datagram) {
                        return Err(HeaderError::OtherTransport.into());
                    }
                    self.discard(header.len - collected)?;
                    let prefix = self.prefix(buffer.get(header.len..).unwrap_or_default(), more);
                    Ok(Poll::Complete(retain(&header)?, prefix))
                }
                Parsed::NeedMore(len) if len > max => Err(HeaderError::TooLong { len, max }.into()),
                Parsed::NeedMore(wanted) => {
                    self.discard(len)?;
                    self.collected
                        .extend_from_slice(buffer.get(collected..).unwrap_or_default());
                    Ok(Poll::Need((wanted - self.collected.len()).max(FIRST_READ)))
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
            self.clear_readiness();
        }
        Ok(received)
    }

    /// Discards `len` peeked bytes from the socket's buffer. Does nothing if they were read, not peeked.
    fn discard(&self, mut len: usize) -> Result<(), HeaderError> {
        while len > 0 && self.payload == Payload::Left {
            match stream::discard(self.stream, len).map_err(HeaderError::Read)? {
                0 => return Err(HeaderError::Read(ErrorKind::UnexpectedEof.into())),
                n => len -= n,
            }
        }
        Ok(())
    }

    /// The bytes that were read behind the header, for the relay.
    fn prefix(&self, behind: &[u8], has_more: bool) -> Prefix {
        match self.payload {
            Payload::Left => Prefix::default(),
            Payload::Read => Prefix {
                bytes: behind.into(),
                sent: 0,
                has_more,
            },
        }
    }

    /// Tells tokio that the socket's buffer is empty.
    fn clear_readiness(&self) {
        clear_ready(self.stream, Interest::READABLE);
    }
}

fn not_a_header(invalid: Invalid, bytes: &[u8]) -> HeaderError {
    HeaderError::Invalid {
        invalid,
        guess: guess_protocol(bytes),
    }
}

/// Bytes of the first read: it holds every header that balancers send in practice, and more would copy payload for nothing.
const FIRST_READ: usize = 1024;

thread_local! {
    /// For all connections of a thread: no poll waits while it uses the buffer.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{self, SocketAddr, TcpListener};
    use std::thread;
    use std::time::Duration;

    use tokio::runtime::Builder;

    use super::*;
    use crate::access::max_connections::MaxConnections;

    /// As after a stop of the process: two headers have come, the deadline has passed, and one wait of the runtime reports one
    /// socket only.
    #[test]
    fn header_that_came_during_a_stop_is_not_late() {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_io_events_per_tick(1)
            .build()
            .unwrap();
        let limits = HeaderLimits {
            timeout: Duration::from_millis(50),
            ..HeaderLimits::default()
        };
        runtime.block_on(async {
            let (mut first, first_stream) = connect();
            let (mut second, second_stream) = connect();
            let stop = async {
                first.write_all(HEADER).unwrap();
                second.write_all(HEADER).unwrap();
                thread::sleep(limits.timeout * 4);
            };
            let (first_source, second_source, ()) = tokio::join!(
                read_source(&first_stream, &limits),
                read_source(&second_stream, &limits),
                stop
            );
            let client = SocketAddr::from(([203, 0, 113, 9], 4711));
            assert_eq!(first_source.unwrap(), Some(client));
            assert_eq!(second_source.unwrap(), Some(client));
        });
    }

    async fn read_source(
        stream: &TcpStream,
        limits: &HeaderLimits,
    ) -> Result<Option<SocketAddr>, HeaderError> {
        let (peer, pending) = (
            IpAddr::from([192, 0, 2, 1]),
            PendingHeaders::new(MaxConnections::new(100)),
        );
        let source = |header: &Header<'_>| Ok::<_, HeaderError>(header.source());
        let (source, _) = read(stream, peer, limits, &pending, source).await?;
        Ok(source)
    }

    fn connect() -> (net::TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        (client, TcpStream::from_std(accepted).unwrap())
    }

    const HEADER: &[u8] = b"PROXY TCP4 203.0.113.9 192.0.2.1 4711 443\r\n";
}

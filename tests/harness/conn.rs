//! One end of a TCP connection, scripted by the test; after HAProxy's `tcploop`.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::harness::lab::{Host, WAIT_LIMIT, lossy_text};

/// A connected socket. No call blocks for longer than [`WAIT_LIMIT`]; any failure panics.
#[derive(Debug)]
pub(crate) struct Conn(TcpStream);

/// How the other side ended its direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Fin,
    Reset,
}

impl Conn {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream
            .set_read_timeout(Some(WAIT_LIMIT))
            .expect("SO_RCVTIMEO");
        stream
            .set_write_timeout(Some(WAIT_LIMIT))
            .expect("SO_SNDTIMEO");
        Self(stream)
    }

    /// Connects from a host, from the address and port that the kernel chooses.
    #[track_caller]
    pub(crate) fn connect(host: &Host, to: SocketAddr) -> Self {
        Self::try_connect(host, to).expect("a connection that is not reset at once")
    }

    /// Connects like [`Self::connect`]; `None` if the other side resets the connection before the call returns.
    #[track_caller]
    pub(crate) fn try_connect(host: &Host, to: SocketAddr) -> Option<Self> {
        match host.enter(|| TcpStream::connect_timeout(&to, WAIT_LIMIT)) {
            Ok(stream) => Some(Self::new(stream)),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            Err(error) => panic!("connect to {to}: {error}"),
        }
    }

    /// Asserts that the other side closes a new connection without sending a byte.
    #[track_caller]
    pub(crate) fn assert_refused(host: &Host, to: SocketAddr) {
        if let Some(conn) = Self::try_connect(host, to) {
            conn.wait_closed();
        }
    }

    /// Asserts that the other side resets a new connection that begins with these bytes, maybe before connect(2)
    /// returns.
    #[track_caller]
    pub(crate) fn assert_reset(host: &Host, to: SocketAddr, bytes: &[u8]) {
        if let Some(conn) = Self::try_connect(host, to)
            && conn.send_if_open(bytes)
        {
            conn.wait_reset();
        }
    }

    /// Connects by MPTCP; the connection falls back to TCP if the listener does not speak MPTCP.
    #[track_caller]
    pub(crate) fn connect_multipath(host: &Host, to: SocketAddr) -> Self {
        let socket = host
            .enter(|| Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::MPTCP)))
            .expect("socket");
        socket
            .connect_timeout(&to.into(), WAIT_LIMIT)
            .expect("connect");
        Self::new(socket.into())
    }

    /// Connects with a receive buffer fixed at about `bytes`, for a slow reader that exerts backpressure.
    pub(crate) fn connect_with_receive_buffer(host: &Host, to: SocketAddr, bytes: usize) -> Self {
        let socket = host
            .enter(|| Socket::new(Domain::for_address(to), Type::STREAM, None))
            .expect("socket");
        socket.set_recv_buffer_size(bytes).expect("SO_RCVBUF");
        socket
            .connect_timeout(&to.into(), WAIT_LIMIT)
            .expect("connect");
        Self::new(socket.into())
    }

    /// Connects and sends `bytes`, as a balancer does for a client.
    pub(crate) fn connect_and_send(host: &Host, to: SocketAddr, bytes: &[u8]) -> Self {
        let conn = Self::connect(host, to);
        conn.send(bytes);
        conn
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.0.local_addr().expect("getsockname")
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.0.peer_addr().expect("getpeername")
    }

    pub(crate) fn send(&self, bytes: &[u8]) {
        (&self.0).write_all(bytes).expect("send");
    }

    /// Sends these bytes, and asserts that they arrive at `other`, the far end of the relayed connection.
    #[track_caller]
    pub(crate) fn assert_reaches(&self, other: &Self, bytes: &[u8]) {
        self.send(bytes);
        assert_eq!(other.recv(bytes.len()), bytes);
    }

    /// Sends a byte of urgent data (MSG_OOB).
    pub(crate) fn send_urgent(&self, byte: u8) {
        let sent = SockRef::from(&self.0).send_out_of_band(&[byte]);
        assert_eq!(sent.expect("send"), 1);
    }

    /// Sends to a connection that may have been closed; returns whether the kernel took the bytes.
    pub(crate) fn send_if_open(&self, bytes: &[u8]) -> bool {
        (&self.0).write_all(bytes).is_ok()
    }

    /// Sends until a write fails, and returns its error.
    pub(crate) fn send_until_error(&self) -> ErrorKind {
        loop {
            if let Err(error) = (&self.0).write(&[0; 64 << 10]) {
                return error.kind();
            }
        }
    }

    /// Receives exactly `len` bytes.
    #[track_caller]
    pub(crate) fn recv(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        if let Err(error) = (&self.0).read_exact(&mut bytes) {
            panic!("receiving {len} bytes: {error}");
        }
        bytes
    }

    /// Receives what one read returns; empty at the end of the stream.
    pub(crate) fn recv_some(&self) -> Vec<u8> {
        let mut bytes = vec![0; 64 << 10];
        let len = (&self.0).read(&mut bytes).expect("recv");
        bytes.truncate(len);
        bytes
    }

    /// Receives until `is_enough` accepts the text, or to the end of the stream.
    #[track_caller]
    pub(crate) fn recv_text_until(&self, is_enough: impl Fn(&str) -> bool) -> String {
        let (mut text, begun) = (String::new(), Instant::now());
        while !is_enough(&text) {
            assert!(
                begun.elapsed() < MAX_STREAM,
                "received for {MAX_STREAM:?}: {text}"
            );
            match self.recv_some().as_slice() {
                [] => break,
                bytes => text.push_str(&String::from_utf8_lossy(bytes)),
            }
        }
        text
    }

    /// Receives to the end and returns how the direction was closed.
    #[track_caller]
    pub(crate) fn recv_to_end(&self) -> (Vec<u8>, End) {
        let mut bytes = Vec::new();
        let end = match (&self.0).read_to_end(&mut bytes) {
            Ok(_) => End::Fin,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => End::Reset,
            Err(error) => panic!("after {} bytes neither FIN nor RST: {error}", bytes.len()),
        };
        (bytes, end)
    }

    /// Receives text to the end of the stream, FIN or RST.
    #[track_caller]
    pub(crate) fn recv_text_to_end(&self) -> String {
        lossy_text(&self.recv_to_end().0)
    }

    /// Waits until the other side closes, and asserts that it sends no byte; returns how it closed, and how
    /// long it took.
    #[track_caller]
    pub(crate) fn wait_closed(&self) -> (End, Duration) {
        let start = Instant::now();
        let (bytes, end) = self.recv_to_end();
        assert!(bytes.is_empty(), "unexpected bytes: {bytes:?}");
        (end, start.elapsed())
    }

    /// Waits until the other side resets the connection, and asserts that it sends no byte.
    #[track_caller]
    pub(crate) fn wait_reset(&self) {
        assert_eq!(self.wait_closed().0, End::Reset);
    }

    /// Asserts that for `time` the other side neither sends nor closes.
    #[track_caller]
    pub(crate) fn assert_stays_open(&self, time: Duration) {
        assert!(
            self.is_open_after(time),
            "expected an open, silent connection"
        );
    }

    /// Waits until the other side sends or closes, `time` at most; returns whether it did neither.
    pub(crate) fn is_open_after(&self, time: Duration) -> bool {
        matches!(self.peek_within(time), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// Waits until the other side sends or closes, `time` at most; returns whether it sent.
    pub(crate) fn is_answered_after(&self, time: Duration) -> bool {
        matches!(self.peek_within(time), Ok(1..))
    }

    /// Peeks at the first byte, and leaves it in the receive queue.
    fn peek_within(&self, time: Duration) -> io::Result<usize> {
        self.0.set_read_timeout(Some(time)).expect("SO_RCVTIMEO");
        let peeked = self.0.peek(&mut [0]);
        self.0
            .set_read_timeout(Some(WAIT_LIMIT))
            .expect("SO_RCVTIMEO");
        peeked
    }

    /// Whether the other side's kernel has acknowledged everything that was sent.
    pub(crate) fn is_all_acknowledged(&self) -> bool {
        peername_sys::tcp::stream::send_queue_len(&self.0).expect("SIOCOUTQ") == 0
    }

    /// Sends FIN (half-close); the other direction stays open.
    pub(crate) fn shutdown_write(&self) {
        self.0.shutdown(Shutdown::Write).expect("shutdown");
    }

    /// Closes with RST.
    pub(crate) fn reset(self) {
        SockRef::from(&self.0)
            .set_linger(Some(Duration::ZERO))
            .expect("SO_LINGER");
    }
}

/// A stream that never ends would hold up a test that waits for a text.
const MAX_STREAM: Duration = Duration::from_secs(60);

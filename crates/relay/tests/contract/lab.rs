//! A relayed connection; the test controls both ends.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use peername_relay::{End, Limits, Method, Pair, Prefix, RelayStats, Side, Tally, relay};
use tokio::runtime;

pub(crate) const METHODS: [Method; 3] = [Method::Auto, Method::Copy, Method::Splice];

/// How a relayed connection ended, and its byte counts.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) end: End,
    pub(crate) tally: Tally,
}

/// Relays until the connection has ended.
pub(crate) async fn run_relay(
    pair: Pair,
    prefix: Prefix,
    method: Method,
    limits: Limits,
) -> Report {
    let stats = Arc::<RelayStats>::default();
    let end = relay(pair, prefix, method, limits, Arc::clone(&stats)).await;
    let tally = stats.tally();
    Report { end, tally }
}

/// A relayed connection: the sockets of client and backend, and the relay.
pub(crate) struct Lab {
    pub(crate) client: TcpStream,
    pub(crate) backend: TcpStream,
    pub(crate) relay: JoinHandle<Report>,
}

impl Lab {
    pub(crate) fn new(method: Method, limits: Limits) -> Self {
        Self::with_prefix(Prefix::default(), method, limits)
    }

    /// With a prefix: the client's first bytes have been read already.
    pub(crate) fn with_prefix(prefix: Prefix, method: Method, limits: Limits) -> Self {
        let ((client, downstream), (backend, upstream)) = (connected(), connected());
        for socket in [&downstream, &upstream] {
            peername_sys::tcp::stream::tune(socket).unwrap();
        }
        let relay = thread::spawn(move || {
            block_on(
                async move { run_relay(pair(downstream, upstream), prefix, method, limits).await },
            )
        });
        Self {
            client,
            backend,
            relay,
        }
    }

    /// Resets one side; returns what the other side reads before its reset, and the report.
    pub(crate) fn reset(self, side: Side) -> (Vec<u8>, Report) {
        let (resetting, remaining) = match side {
            Side::Downstream => (self.client, self.backend),
            Side::Upstream => (self.backend, self.client),
        };
        reset(resetting);
        (read_to_reset(&remaining), self.relay.join().unwrap())
    }

    /// Closes both ends and waits for the end of the relay.
    pub(crate) fn close(self) -> Report {
        drop((self.client, self.backend));
        self.relay.join().unwrap()
    }
}

/// The default limits, with a flush timeout that a test with a stalled side can wait for.
pub(crate) fn short_flush_timeout() -> Limits {
    Limits {
        flush: Duration::from_millis(300),
        ..Limits::default()
    }
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

pub(crate) fn pair(downstream: TcpStream, upstream: TcpStream) -> Pair {
    let [downstream, upstream] = [downstream, upstream].map(|socket| {
        socket.set_nonblocking(true).unwrap();
        tokio::net::TcpStream::from_std(socket).unwrap()
    });
    Pair {
        downstream,
        upstream,
    }
}

/// A connection on loopback: the end for the test, and the end for the relay.
pub(crate) fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let test_end = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    test_end
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    (test_end, listener.accept().unwrap().0)
}

/// Bytes that depend on the position, so that loss and reordering are detected.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8)
        .collect()
}

pub(crate) fn send_and_finish(mut socket: &TcpStream, bytes: &[u8]) {
    socket.write_all(bytes).unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
}

pub(crate) fn read_to_end(mut socket: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    socket.read_to_end(&mut all).unwrap();
    all
}

/// Reads until the connection is reset and returns the bytes before it.
pub(crate) fn read_to_reset(mut socket: &TcpStream) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => panic!("FIN after {} bytes instead of a reset", all.len()),
            Ok(n) => all.extend_from_slice(&buffer[..n]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
                return all;
            }
        }
    }
}

pub(crate) fn reset(socket: TcpStream) {
    peername_sys::tcp::stream::reset_on_close(&socket).unwrap();
}

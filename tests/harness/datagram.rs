//! A UDP socket scripted by the test: a balancer's, a backend's or a client's.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::lab::{Host, WAIT_LIMIT};

/// A bound socket on a host.
#[derive(Debug)]
pub(crate) struct DatagramSocket(UdpSocket);

impl DatagramSocket {
    /// Retries while the address is in use: a socket that the test has closed stays open in the children of
    /// other tests from their fork(2) to their execve(2).
    pub(crate) fn bind(host: &Host, addr: SocketAddr) -> Self {
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            match host.enter(|| UdpSocket::bind(addr)) {
                Ok(socket) => return Self(socket),
                Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("bind {addr}: {error}"),
            }
        }
    }

    pub(crate) fn socket(&self) -> &UdpSocket {
        &self.0
    }

    #[track_caller]
    pub(crate) fn send(&self, to: SocketAddr, parts: &[&[u8]]) {
        let bytes = parts.concat();
        let sent = self.0.send_to(&bytes, to).expect("send");
        assert_eq!(sent, bytes.len());
    }

    /// Waits for the next datagram; returns it and its sender.
    #[track_caller]
    pub(crate) fn recv(&self) -> (Vec<u8>, SocketAddr) {
        self.recv_within(WAIT_LIMIT)
            .expect("waited in vain for a datagram")
    }

    /// Waits for the next datagram, `limit` at most.
    pub(crate) fn recv_within(&self, limit: Duration) -> Option<(Vec<u8>, SocketAddr)> {
        self.0.set_read_timeout(Some(limit)).expect("SO_RCVTIMEO");
        let mut buffer = vec![0; 1 << 16];
        loop {
            match self.0.recv_from(&mut buffer) {
                Ok((n, from)) => {
                    buffer.truncate(n);
                    return Some((buffer, from));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // An ICMP error for an earlier datagram; a signal, after which a call with a timeout is not restarted (signal(7)).
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionRefused | ErrorKind::Interrupted
                    ) => {}
                Err(error) => panic!("recv: {error}"),
            }
        }
    }

    /// Asserts that the next datagram has this payload and this sender.
    #[track_caller]
    pub(crate) fn expect_datagram(&self, payload: &[u8], from: SocketAddr) {
        let (bytes, sender) = self.recv();
        assert_eq!(bytes, payload, "from {sender}");
        assert_eq!(sender, from);
    }

    /// Sends a datagram of `client` behind `header`, and the backend's reply; asserts that both arrive.
    #[track_caller]
    pub(crate) fn round_trip(
        &self,
        to: SocketAddr,
        header: &[u8],
        backend: &Self,
        client: SocketAddr,
    ) {
        self.send(to, &[header, b"ping"]);
        backend.expect_datagram(b"ping", client);
        backend.send(client, &[b"pong"]);
        self.expect_datagram(b"pong", to);
    }

    /// Asserts that no datagram comes. Use it together with a later datagram that does come: a busy machine may
    /// take longer than this waits.
    #[track_caller]
    pub(crate) fn assert_silent(&self) {
        if let Some((bytes, from)) = self.recv_within(Duration::from_millis(50)) {
            panic!("{} bytes from {from}", bytes.len());
        }
    }
}

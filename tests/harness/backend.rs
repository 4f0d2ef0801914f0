//! A backend scripted by the test: it accepts when the test calls [`Backend::accept`], so no connection goes
//! unnoticed.

use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use crate::harness::conn::Conn;
use crate::harness::lab::{Host, WAIT_LIMIT, wait_for};

/// A listening socket on a host.
#[derive(Debug)]
pub(crate) struct Backend(TcpListener);

impl Backend {
    pub(crate) fn listen(host: &Host, addr: SocketAddr) -> Self {
        // An earlier listener at this address stays open in children of other tests from fork(2) to execve(2).
        let bind = || host.enter(|| TcpListener::bind(addr)).ok();
        Self(wait_for(&format!("bind {addr}"), bind))
    }

    /// Listens with an accept backlog of `backlog` (the kernel admits one connection more).
    pub(crate) fn listen_with_backlog(host: &Host, addr: SocketAddr, backlog: i32) -> Self {
        let listener = host.enter(|| Socket::new(Domain::for_address(addr), Type::STREAM, None));
        let listener = listener.expect("socket");
        listener.bind(&addr.into()).expect("bind");
        listener.listen(backlog).expect("listen");
        Self(listener.into())
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.0.local_addr().expect("getsockname")
    }

    /// Waits for the next connection.
    #[track_caller]
    pub(crate) fn accept(&self) -> Conn {
        self.accept_within(WAIT_LIMIT)
            .expect("the backend waited in vain for a connection")
    }

    /// Waits for the next connection, and asserts that it comes from exactly `client`.
    #[track_caller]
    pub(crate) fn accept_from(&self, client: SocketAddr) -> Conn {
        let conn = self.accept();
        assert_eq!(
            conn.peer_addr(),
            client,
            "the client as the backend sees it"
        );
        conn
    }

    /// Waits for the next connection; `None` if the proxy closes its client's connection instead.
    pub(crate) fn accept_or_closed(&self, down: &Conn) -> Option<Conn> {
        wait_for("a connection, or its refusal", || {
            let moment = Duration::from_millis(1);
            match self.accept_within(moment) {
                Some(up) => Some(Some(up)),
                None => (!down.is_open_after(moment)).then_some(None),
            }
        })
    }

    /// Waits for the next connection, `limit` at most.
    pub(crate) fn accept_within(&self, limit: Duration) -> Option<Conn> {
        // On Linux SO_RCVTIMEO holds for accept(2) too.
        SockRef::from(&self.0)
            .set_read_timeout(Some(limit))
            .expect("SO_RCVTIMEO");
        match self.0.accept() {
            Ok((stream, _)) => Some(Conn::new(stream)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("accept: {error}"),
        }
    }

    /// Asserts that no connection is in the accept backlog. On loopback a connection is established when
    /// connect(2) returns, so once the proxy has closed a client's connection the answer is final.
    #[track_caller]
    pub(crate) fn assert_no_connection(&self) {
        if let Some(conn) = self.accept_within(Duration::from_millis(1)) {
            panic!("a connection from {} reached the backend", conn.peer_addr());
        }
    }
}

/// Refuses connections from now on, also while children of other tests hold the socket, from fork(2) to execve(2).
impl Drop for Backend {
    fn drop(&mut self) {
        let _ = SockRef::from(&self.0).shutdown(Shutdown::Both);
    }
}

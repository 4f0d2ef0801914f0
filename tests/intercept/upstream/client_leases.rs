//! Client leases: NTLM or Negotiate may authenticate a connection to an origin as one user. Such a connection serves only the
//! client's connection that leased it, and is otherwise like all others.

use std::time::{Duration, Instant};

use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::conn::{Conn, End};
use crate::harness::lab::poll_until;
use crate::harness::rig::intercept::{InterceptRig, PROXY_ADDR, recv_head};

const ORIGIN: std::net::SocketAddr = v4([10, 81, 0, 1], 9001);

/// It expires whether the client or the origin began the authentication, and however busy the client is elsewhere.
#[test]
fn leased_connection_expires_when_idle() {
    let rig = InterceptRig::new(&["--workers=1", "--idle-timeout=4s"]);
    let origin = Backend::listen(&rig.lab.server, ORIGIN);
    let client = Conn::connect(&rig.lab.client, PROXY_ADDR);
    let by_client = exchange(&client, CREDENTIALS, || origin.accept(), GOOD);
    let other_client = Conn::connect(&rig.lab.client, PROXY_ADDR);
    let by_origin = exchange(&other_client, "", || origin.accept(), CHALLENGE);
    let deadline = Instant::now() + Duration::from_secs(30);
    let ended = poll_until(deadline, || {
        for conn in [&client, &other_client] {
            conn.send(b"HEAD http://a.test/echo HTTP/1.1\r\nHost: a.test\r\n\r\n");
            assert!(recv_head(conn).starts_with("HTTP/1.1 200 "));
        }
        let is_open = |up: &Conn| up.is_open_after(Duration::from_millis(100));
        (!is_open(&by_client) && !is_open(&by_origin)).then_some(())
    });
    ended.expect("their end");
}

/// No other client gets the connection, now or later.
#[test]
fn leased_connection_lives_as_long_as_its_client() {
    let rig = InterceptRig::new(&["--workers=1"]);
    let origin = Backend::listen(&rig.lab.server, ORIGIN);
    let client = Conn::connect(&rig.lab.client, PROXY_ADDR);
    let mut up = exchange(&client, CREDENTIALS, || origin.accept(), GOOD);
    let other_client = Conn::connect(&rig.lab.client, PROXY_ADDR);
    let other_up = exchange(&other_client, "", || origin.accept(), GOOD);
    up = exchange(&client, "", || up, GOOD);
    drop(client);
    assert_eq!(up.wait_closed().0, End::Fin);
    exchange(&other_client, "", || other_up, GOOD);
    drop(origin);
}

/// Sends a request with these headers, and answers it on the connection to the origin that `up` gives; returns that connection.
fn exchange(client: &Conn, headers: &str, up: impl FnOnce() -> Conn, answer: &str) -> Conn {
    let request = format!("GET http://{ORIGIN}/ HTTP/1.1\r\nHost: {ORIGIN}\r\n{headers}\r\n");
    client.send(request.as_bytes());
    let up = up();
    assert!(recv_head(&up).starts_with("GET / "));
    up.send(answer.as_bytes());
    let status = answer.get(..12).expect("a status");
    assert!(recv_head(client).starts_with(status));
    up
}

const CREDENTIALS: &str = "Authorization: Negotiate YWxpY2U=\r\n";
const GOOD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const CHALLENGE: &str =
    "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Negotiate\r\nContent-Length: 0\r\n\r\n";

//! Stall detection: a client without progress is aborted after its idle timeout. A response that has begun may be silent,
//! unless its host has a timeout.

use std::time::{Duration, Instant};

use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::wait_until;
use crate::harness::rig::intercept::{InterceptRig, PROXY_ADDR, recv_head};

const ORIGIN: std::net::SocketAddr = v4([10, 81, 0, 1], 9001);
const ALLOW: &str = "--allow-destination=10.81.0.1:9001";
const IDLE: &str = "--idle-timeout=1s";

/// GOAWAY and FIN, for a client that has its response and keeps the connection.
#[test]
fn idle_http2_client_gets_goaway() {
    let rig = InterceptRig::new(&["--idle-timeout=4s"]);
    assert_eq!(rig.run_python_client(IDLE_CLIENT, &[]), "200 goaway end");
}

/// The origin sends half of what it has announced.
#[test]
fn stalled_response_is_aborted() {
    let rig = InterceptRig::new(&["--host-idle-timeout=a.test=1s", ALLOW]);
    let (_origin, down, up) = send_request(&rig, "GET", "/half");
    up.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
    assert!(recv_head(&down).starts_with("HTTP/1.1 200 "));
    down.recv_to_end();
    up.wait_closed();
    assert_eq!(rig.wait_audit_lines("/half", 1)[0]["end"], "idle");
}

/// Only a write would tell whether a client that has shut down its side is still there, and a silent origin causes none.
#[test]
fn silent_response_of_a_half_closed_client_is_aborted() {
    let rig = InterceptRig::new(&[IDLE, ALLOW]);
    let (_origin, down, up) = send_request(&rig, "GET", "/watch");
    up.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
    assert!(recv_head(&down).starts_with("HTTP/1.1 200 "));
    drop(down);
    up.wait_closed();
    assert_eq!(rig.wait_audit_lines("/watch", 1)[0]["end"], "idle");
}

/// As long as bytes move, the exchange is not idle.
#[test]
fn slow_response_is_not_aborted() {
    let rig = InterceptRig::new(&["--host-idle-timeout=a.test=4s", ALLOW]);
    let (_origin, down, up) = send_request(&rig, "GET", "/slow");
    up.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n");
    for byte in b"not at all" {
        std::thread::sleep(Duration::from_millis(500));
        up.send(&[*byte]);
    }
    down.recv_text_until(|text| text.ends_with("all"));
    assert_eq!(rig.wait_audit_lines("/slow", 1)[0]["end"], "complete");
}

/// The client reads no more: first the origin is released, then the client's connection is closed.
#[test]
fn client_that_does_not_read_is_aborted() {
    let allow = "--allow-destination=10.81.0.1:8081";
    let rig = InterceptRig::new(&[IDLE, allow, "--admin=127.0.0.1:9300"]);
    let down = Conn::connect_with_receive_buffer(&rig.lab.client, PROXY_ADDR, 4096);
    down.send(b"GET http://a.test:8081/large HTTP/1.1\r\nHost: a.test:8081\r\n\r\n");
    assert_eq!(rig.wait_audit_lines("/large", 1)[0]["end"], "idle");
    wait_until("the end of the client's connection", || {
        rig.read_metrics().contains("connections_active 0")
    });
}

/// A client sends a part of its request and no more.
#[test]
fn stalled_request_is_aborted() {
    let rig = InterceptRig::new(&[IDLE, ALLOW]);
    let (_origin, down, up) = send_request(&rig, "POST", "/half");
    let answer = down.recv_text_until(|text| text.contains("client_idle"));
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    up.recv_to_end();
    assert_eq!(rig.wait_audit_lines("/half", 1)[0]["code"], "client_idle");
}

/// Followed logs, watches and long answers of models may be silent for long, and no content type announces it.
#[test]
fn response_that_has_begun_may_be_silent() {
    let rig = InterceptRig::new(&[IDLE, "--tunnel-timeout=1s", ALLOW]);
    for kind in [
        "text/plain",
        "application/json;stream=watch",
        "application/x-ndjson",
        "application/connect+json",
        "text/event-stream",
    ] {
        let (_origin, down, up) = send_request(&rig, "GET", "/events");
        std::thread::sleep(Duration::from_millis(1500));
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type";
        up.send(format!("{head}: {kind}\r\n\r\n").as_bytes());
        recv_head(&down);
        std::thread::sleep(Duration::from_millis(2500));
        up.send(b"data: 1\n\n");
        let event = down.recv_text_until(|text| text.contains("data: 1"));
        assert!(event.contains("data: 1"), "{kind}: {event}");
    }
}

/// `--host-answer-timeout` gives the response head of one host more time than `--answer-timeout` gives others.
#[test]
fn host_has_an_answer_timeout_of_its_own() {
    let rig = InterceptRig::new(&[
        "--answer-timeout=1s",
        "--host-answer-timeout=a.test=20s",
        ALLOW,
    ]);
    let (origin, down, up) = send_request(&rig, "GET", "/late");
    std::thread::sleep(Duration::from_millis(2500));
    up.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert!(recv_head(&down).starts_with("HTTP/1.1 200 "));
    let other = b"GET http://b.test:9001/late HTTP/1.1\r\nHost: b.test:9001\r\n\r\n";
    let down = rig.connect_and_send(other);
    let _up = origin.accept();
    assert!(recv_head(&down).starts_with("HTTP/1.1 504 "));
}

/// `--tunnel-timeout` applies to relayed tunnels and to connections after an upgrade.
#[test]
fn tunnels_and_websockets_have_their_own_idle_timeout() {
    let rig = InterceptRig::new(&[IDLE, "--tunnel-timeout=3s", ALLOW]);
    let origin = Backend::listen(&rig.lab.server, ORIGIN);
    let tunnel = rig.connect_and_send(b"CONNECT a.test:9001 HTTP/1.1\r\n\r\n");
    recv_head(&tunnel);
    let bytes = b"\0\0\0\0neither TLS nor HTTP";
    tunnel.send(bytes);
    let relayed = origin.accept();
    relayed.recv(bytes.len());
    let websocket = rig.connect_and_send(UPGRADE);
    let switched = origin.accept();
    recv_head(&switched);
    let switching =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let silent = Instant::now();
    switched.send(switching.as_bytes());
    recv_head(&websocket);
    for (down, up) in [(&tunnel, &relayed), (&websocket, &switched)] {
        down.wait_closed();
        up.wait_closed();
    }
    assert!(
        silent.elapsed() > Duration::from_secs(2),
        "not after a second"
    );
    for path in ["", "/chat"] {
        assert_eq!(rig.wait_audit_lines(path, 1)[0]["end"], "idle", "{path}");
    }
}

/// Sends a request, with only half of a POST's body. Returns the listening origin, the client's connection, and the connection
/// at the origin, which has received the head.
fn send_request(rig: &InterceptRig, method: &str, path: &str) -> (Backend, Conn, Conn) {
    let origin = Backend::listen(&rig.lab.server, ORIGIN);
    let body = if method == "POST" {
        "Content-Length: 10\r\n\r\nhalf"
    } else {
        "\r\n"
    };
    let request =
        format!("{method} http://a.test:9001{path} HTTP/1.1\r\nHost: a.test:9001\r\n{body}");
    let down = rig.connect_and_send(request.as_bytes());
    let up = origin.accept();
    recv_head(&up);
    (origin, down, up)
}

const UPGRADE: &[u8] = b"GET http://a.test:9001/chat HTTP/1.1\r\nHost: a.test:9001\r\n\
Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";

const IDLE_CLIENT: &str = include_str!("stalls/idle_client.py");

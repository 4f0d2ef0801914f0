//! `peername doctor --observe`: reports what the sender really sends.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use crate::harness::addr::v4;
use crate::harness::conn::Conn;
use crate::harness::header_bytes;
use crate::harness::lab::{Host, Process};
use crate::harness::peername::{BINARY, words};

/// Runs the observer and `send`, then checks exit code and report.
#[track_caller]
fn assert_observed(send: impl FnOnce(&Host), code: i32, report: &str) {
    let host = Host::new();
    let observe = words("doctor --observe 127.0.0.1:7000 --for 2s");
    let mut observer = Process::start(&host, BINARY, &observe).wait_listening(&[OBSERVER]);
    send(&host);
    let status = observer.wait_exit(Duration::from_secs(5)).expect("its end");
    observer.wait_logged(report);
    assert_eq!(status.code(), Some(code), "{}", observer.log());
    assert_eq!(observer.log().lines().count(), 1, "{}", observer.log());
}

/// As [`assert_observed`], for one connection that begins with these bytes.
#[track_caller]
fn assert_recognized(bytes: &[u8], code: i32, report: &str) {
    assert_observed(
        |host| drop(Conn::connect_and_send(host, OBSERVER, bytes)),
        code,
        report,
    );
}

fn header() -> Vec<u8> {
    header_bytes::v2(v4([1, 2, 3, 4], 1), v4([5, 6, 7, 8], 2), &[])
}

#[test]
fn both_header_versions_are_recognized() {
    assert_recognized(
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET /",
        0,
        "ok    observed: a PROXY protocol header of version 1 from 127.0.0.1:",
    );
    assert_recognized(
        &header(),
        0,
        "ok    observed: a PROXY protocol header of version 2 from 127.0.0.1:",
    );
}

#[test]
fn header_in_pieces_is_recognized() {
    let send = |host: &Host| {
        let conn = Conn::connect(host, OBSERVER);
        // The observer disconnects once it has seen enough.
        for byte in &header()[..16] {
            conn.send(&[*byte]);
            thread::sleep(Duration::from_millis(5));
        }
    };
    let report = "ok    observed: a PROXY protocol header of version 2";
    assert_observed(send, 0, report);
}

#[test]
fn header_for_a_datagram_fails() {
    let header = header_bytes::v2_udp(v4([1, 2, 3, 4], 1), v4([5, 6, 7, 8], 2));
    assert_recognized(&header, 3, "for a datagram from 127.0.0.1:");
}

#[test]
fn other_protocols_are_named() {
    for (bytes, report) in [
        (&b"SSH-2.0-x\r\n"[..], "FAIL  observed: SSH from"),
        (
            b"GET / HTTP/1.1\r\n",
            "FAIL  observed: an HTTP/1 request from",
        ),
        (
            b"\x16\x03\x01\0\x31\x01\0\0\x2d\x03\x03",
            "FAIL  observed: a TLS ClientHello from",
        ),
        (b"\x1b[2J", "no PROXY header; first bytes 1b5b324a;"),
    ] {
        assert_recognized(bytes, 3, report);
    }
}

#[test]
fn sender_that_waits_for_the_first_ack_is_recognized() {
    let send = |host: &Host| {
        let silent = Conn::connect(host, OBSERVER);
        thread::sleep(Duration::from_millis(2500));
        drop(silent);
    };
    assert_observed(send, 3, "on_first_ack");
}

#[test]
fn health_checks_are_not_taken_for_traffic() {
    let report = "warn  observed: only health checks: 1 connection";
    assert_observed(|host| drop(Conn::connect(host, OBSERVER)), 0, report);
    let send_both = |host: &Host| {
        drop(Conn::connect(host, OBSERVER));
        let silent = Conn::connect(host, OBSERVER);
        drop(Conn::connect_and_send(host, OBSERVER, &header()));
        drop(silent);
    };
    let report = "ok    observed: a PROXY protocol header of version 2";
    assert_observed(send_both, 0, report);
}

#[test]
fn missing_connections_fail() {
    let report = "FAIL  observed: no client connected to 127.0.0.1:7000 within 2s";
    assert_observed(|_| (), 3, report);
}

const OBSERVER: SocketAddr = v4([127, 0, 0, 1], 7000);

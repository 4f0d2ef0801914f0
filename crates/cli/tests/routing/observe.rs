//! `peername doctor --observe`: reports what the sender really sends.

use std::io::Write;
use std::net::TcpStream;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::{in_namespace, peername};

/// Runs the observer and `sender`, then checks exit code and report.
fn assert_observed(
    sender: impl FnOnce() -> Result<()> + Send + 'static,
    code: i32,
    report: &'static str,
) -> Result<()> {
    in_namespace(move || {
        let observer = peername("doctor --observe 127.0.0.1:7000 --for 2s")
            .stdout(Stdio::piped())
            .spawn()?;
        sender()?;
        let output = observer.wait_with_output()?;
        let stdout = String::from_utf8(output.stdout)?;
        assert_eq!(output.status.code(), Some(code), "{stdout}");
        assert!(stdout.contains(report), "{stdout}");
        assert_eq!(stdout.lines().count(), 1, "{stdout}");
        Ok(())
    })
}

/// Connects, and retries until the observer listens.
fn connect() -> Result<TcpStream> {
    let deadline = Instant::now() + Duration::from_secs(1);
    loop {
        match TcpStream::connect("127.0.0.1:7000") {
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
            outcome => return Ok(outcome?),
        }
    }
}

fn send(bytes: &[u8]) -> Result<()> {
    Ok(connect()?.write_all(bytes)?)
}

const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x01\x02\x03\x04\x05\x06\x07\x08\0\x01\0\x02";

#[test]
fn both_header_versions_are_recognized() -> Result<()> {
    let v1 = || send(b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET /");
    assert_observed(
        v1,
        0,
        "ok    observed: a PROXY protocol header of version 1 from 127.0.0.1:",
    )?;
    let v2 = || send(V2);
    assert_observed(
        v2,
        0,
        "ok    observed: a PROXY protocol header of version 2 from 127.0.0.1:",
    )
}

#[test]
fn header_in_pieces_is_recognized() -> Result<()> {
    let pieces = || {
        let mut connection = connect()?;
        // The observer disconnects once it has seen enough.
        for byte in &V2[..16] {
            connection.write_all(&[*byte])?;
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    };
    assert_observed(
        pieces,
        0,
        "ok    observed: a PROXY protocol header of version 2",
    )
}

#[test]
fn header_for_a_datagram_fails() -> Result<()> {
    let datagram = || {
        let mut header = V2.to_vec();
        header[13] = 0x12;
        send(&header)
    };
    assert_observed(datagram, 3, "for a datagram from 127.0.0.1:")
}

#[test]
fn other_protocols_are_named() -> Result<()> {
    assert_observed(|| send(b"SSH-2.0-x\r\n"), 3, "FAIL  observed: SSH from")?;
    assert_observed(
        || send(b"GET / HTTP/1.1\r\n"),
        3,
        "FAIL  observed: an HTTP/1 request from",
    )?;
    let hello = || send(b"\x16\x03\x01\0\x31\x01\0\0\x2d\x03\x03");
    assert_observed(hello, 3, "FAIL  observed: a TLS ClientHello from")?;
    assert_observed(|| send(b"\x1b[2J"), 3, "no header, but the bytes 1b5b324a;")
}

#[test]
fn sender_that_waits_for_the_first_ack_is_recognized() -> Result<()> {
    let silent = || {
        let connection = connect()?;
        thread::sleep(Duration::from_millis(2500));
        drop(connection);
        Ok(())
    };
    assert_observed(silent, 3, "on_first_ack")
}

#[test]
fn health_checks_are_not_taken_for_traffic() -> Result<()> {
    assert_observed(
        || connect().map(drop),
        0,
        "warn  observed: only health checks: 1 connection",
    )?;
    let both = || {
        drop(connect()?);
        let silent = connect()?;
        send(V2)?;
        drop(silent);
        Ok(())
    };
    assert_observed(
        both,
        0,
        "ok    observed: a PROXY protocol header of version 2",
    )
}

#[test]
fn missing_connections_fail() -> Result<()> {
    assert_observed(
        || Ok(()),
        3,
        "FAIL  observed: no client connected to 127.0.0.1:7000 within 2s",
    )
}

//! Senders: curl and nginx in front, which make their headers in their own ways.

use std::net::SocketAddr;

use crate::harness::addr::{CLIENT_V4, FRONT_V4, LISTEN_V4};
use crate::harness::conn::Conn;
use crate::harness::lab::python;
use crate::harness::programs::sender::{NginxStream, curl_with_header};
use crate::harness::rig::exec::ProgramRig;

/// curl names its own end of the connection as the source.
#[test]
fn headers_of_curl_and_nginx_name_the_client() {
    let program = ProgramRig::start(&python(PYTHON));
    let claimed = curl_with_header(&program.lab, LISTEN_V4);
    program.process.wait_line("of curl", |line| {
        (find_peer(line) == Some(claimed)).then_some(())
    });
    let _nginx = NginxStream::start(&program.lab, LISTEN_V4);
    let conn = Conn::connect_and_send(&program.lab.client, FRONT_V4, b"GET / HTTP/1.0\r\n\r\n");
    let output = conn.recv_text_until(|output| find_peer(output).is_some());
    assert_eq!(find_peer(&output), Some(CLIENT_V4), "{output}");
}

/// The address in the first line `peer ADDRESS PORT`.
fn find_peer(text: &str) -> Option<SocketAddr> {
    text.lines().find_map(|line| {
        let (ip, port) = line.strip_prefix("peer ")?.trim().split_once(' ')?;
        crate::harness::addr::from_parts(ip, port)
    })
}

const PYTHON: &str = include_str!("senders/python.py");

//! Every call by which a program waits for connections: all see the client, and an incomplete header delays
//! no other client.

use std::time::{Duration, Instant};

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{Scratch, python};
use crate::harness::rig::exec::{
    Libc, MODES, PRELOAD, ProgramRig, ServerRig, compiled_server, v1, v2,
};

macro_rules! server_tests {
    ($($name:ident $server_args:literal)*) => { $(
        #[test]
        fn $name() {
            for mode in MODES {
                assert_serves(&ServerRig::static_under_notify(mode, $server_args, &[]));
            }
        }
    )* };
}

server_tests! {
    blocking "--accept=block"
    threads "--accept=threads"
    forked "--accept=fork"
    poll "--accept=poll"
    select "--accept=select"
    level_triggered_epoll "--accept=level"
    edge_triggered_epoll "--accept=edge"
    exclusive_epoll "--accept=exclusive"
    oneshot_epoll "--accept=oneshot"
    blocking_v6 "--accept=block --family=6"
    forked_v6 "--accept=fork --family=6"
    edge_triggered_epoll_v6 "--accept=edge --family=6"
}

/// The library works in a program with another C library than glibc, too.
#[test]
fn musl_program_sees_its_clients() {
    for server_args in ["--accept=block", "--accept=edge"] {
        let server = compiled_server(Libc::Musl);
        assert_serves(&ServerRig::start(PRELOAD, &[], &server, server_args, &[]));
    }
}

fn assert_serves(served: &ServerRig) {
    for header in [v1, v2] {
        let client = fresh_client_v4();
        let conn = served.connect_and_send(&[&header(client)[..], b"hi"].concat());
        served.assert_sees(&conn, served.shown_as(client));
    }
    assert_two_pieces_served(served);
    assert_single_bytes_served(served);
}

/// While one header is incomplete, another client is served at once.
fn assert_two_pieces_served(served: &ServerRig) {
    let (slow, fast) = (fresh_client_v4(), fresh_client_v4());
    let header = v2(slow);
    let (first, second) = header.split_at(20);
    let waiting = served.connect_and_send(first);
    let start = Instant::now();
    served.assert_sees(
        &served.connect_and_send(&[&v2(fast)[..], b"hi"].concat()),
        served.shown_as(fast),
    );
    assert!(start.elapsed() < DELAY_LIMIT, "{:?}", start.elapsed());
    waiting.send(second);
    waiting.send(b"hi");
    served.assert_sees(&waiting, served.shown_as(slow));
}

fn assert_single_bytes_served(served: &ServerRig) {
    for header in [v1, v2] {
        let client = fresh_client_v4();
        let header = header(client);
        let conn = served.connect_and_send(&[]);
        for byte in &header {
            conn.send(&[*byte]);
            std::thread::sleep(Duration::from_micros(500));
        }
        conn.send(b"hi");
        served.assert_sees(&conn, served.shown_as(client));
    }
}

/// Far below the header timeout, far above what a busy machine takes.
const DELAY_LIMIT: Duration = Duration::from_secs(2);

/// getsockopt(SO_PEERNAME) returns what getpeername(2) returns.
#[test]
fn so_peername_returns_the_client() {
    let program = ProgramRig::start(&python(BY_OPTION));
    let client = fresh_client_v4();
    let conn = Conn::connect_and_send(&program.lab.balancer, LISTEN_V4, &v2(client));
    let shown = conn.recv_text_to_end();
    let expected = format!("{client} EINVAL\n");
    assert_eq!(shown, expected);
}

/// As without peername, SO_RCVTIMEO of the listener limits the wait in accept(2). Connections that are refused meanwhile
/// prolong it once at most.
#[test]
fn accept_waits_no_longer_than_the_receive_timeout() {
    for mode in MODES {
        let program = ProgramRig::with_mode(mode, &[], &python(TIMING_OUT));
        program.process.wait_printed("EAGAIN after 1 s");
        let before = program.process.count_logged("EAGAIN");
        for _ in 0..10 {
            Conn::assert_reset(&program.lab.balancer, LISTEN_V4, b"no header\r\n");
            std::thread::sleep(Duration::from_millis(300));
        }
        let log = program.process.log();
        assert!(
            program.process.count_logged("EAGAIN") > before,
            "{mode}: {log}"
        );
        let client = fresh_client_v4();
        let conn = Conn::connect_and_send(&program.lab.balancer, LISTEN_V4, &v2(client));
        assert_eq!(conn.recv_text_to_end(), client.to_string());
    }
}

/// A header that has come is peeked at once, and no clock is read before accept(2).
#[test]
fn complete_header_takes_one_peek_and_no_clock() {
    for mode in MODES {
        let scratch = Scratch::new();
        let script = scratch.write("deferring.py", DEFERRING);
        let file = scratch.path_text("trace");
        let traced = "trace=accept4,recvfrom,clock_gettime";
        let through = ["strace", "-f", "-o", &file, "-e", traced];
        let served = ServerRig::start(mode, &through, "/usr/bin/python3", &script, &[]);
        let client = fresh_client_v4();
        let conn = served.connect_and_send(&v2(client));
        assert_eq!(conn.recv_text_to_end(), client.to_string(), "{mode}");
        let trace = scratch.read("trace");
        assert_eq!(trace.matches("MSG_PEEK").count(), 1, "{mode}: {trace}");
        let calls: Vec<_> = trace.lines().collect();
        assert!(
            !calls.windows(2).any(|calls| {
                calls[0].contains(" clock_gettime(") && calls[1].contains(" accept4(")
            }),
            "{mode}: {trace}"
        );
    }
}

/// Accepts a connection once its first bytes have come.
const DEFERRING: &str = include_str!("accept_calls/deferring.py");
/// Reads SO_PEERNAME also into a buffer that is larger than the address, which the kernel refuses.
const BY_OPTION: &str = include_str!("accept_calls/by_option.py");
/// Accepts with a receive timeout of a second, and prints how long each accept(2) took that failed.
const TIMING_OUT: &str = include_str!("accept_calls/timing_out.py");

//! SIGTERM: the proxy drains. Open connections may finish, no new one is accepted, and a second signal ends
//! it at once.

mod delay;

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::{Conn, End};
use crate::harness::lab::Lab;
use crate::harness::pattern::{assert_same, pattern};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::proxy::{ProxyRig, header_for};

/// HAProxy, nginx and go-mmproxy all cut transfers short on SIGTERM.
#[test]
fn draining_proxy_finishes_open_connections() {
    let mut rig = ProxyRig::new(&[]);
    let pairs: Vec<(Conn, Conn)> = (0..50)
        .map(|_| rig.connect_client(fresh_client_v4()))
        .collect();
    let half = pattern(7, 64 << 10);
    pairs.iter().for_each(|(_, up)| up.send(&half));
    rig.proxy.signal(Signal::TERM);
    rig.lab.balancer.wait_connection_refused(LISTEN_V4);
    assert_finish(&pairs, &half);
    rig.proxy.wait_success(Duration::from_secs(2));
    wait_drain_ended(&rig, "all connections have ended", 0);
}

/// At the connection limit, connections in the accept backlog wait for a permit of that limit. A drain must not reset them.
#[test]
fn draining_proxy_serves_connections_that_wait_for_a_permit() {
    let few_descriptors = ["prlimit", "--nofile=96:96"];
    let mut rig = ProxyRig::start_through(&few_descriptors, &["--drain=20s"]);
    let connections = 90;
    let open = |_| {
        let down = rig.connect_and_send(&[&header_for(fresh_client_v4())[..], b"ask"].concat());
        down.shutdown_write();
        down
    };
    let downs: Vec<Conn> = (0..connections).map(open).collect();
    let served: Vec<Conn> = (0..15).map(|_| rig.backend_v4.accept()).collect();
    rig.proxy.signal(Signal::TERM);
    rig.proxy.wait_logged("accepting no more");
    let answer = |up: Conn| {
        assert_eq!(up.recv(3), b"ask");
        up.send(b"yes");
    };
    let waiting = connections - served.len();
    served.into_iter().for_each(answer);
    (0..waiting).for_each(|_| answer(rig.backend_v4.accept()));
    for down in downs {
        assert_eq!(down.recv_to_end(), (b"yes".to_vec(), End::Fin));
    }
    rig.proxy.wait_success(Duration::from_secs(3));
}

/// A drain accepts the backlog, but keeps a descriptor free for each connection that has a permit of the connection limit and is
/// not yet connected to its backend.
#[test]
fn permit_holders_reach_the_backend_during_a_drain() {
    let few_descriptors = ["prlimit", "--nofile=96:96"];
    let args = words("--drain=20s --max-pending=100 --max-pending-per-peer=100");
    let rig = ProxyRig::start_through(&few_descriptors, &args);
    let ask = |down: &Conn| {
        down.send(&[&header_for(fresh_client_v4())[..], b"ask"].concat());
        down.shutdown_write();
    };
    let slow: Vec<Conn> = (0..15).map(|_| rig.connect_and_send(&[])).collect();
    for down in &slow {
        down.assert_stays_open(Duration::from_millis(5));
    }
    let queue: Vec<Conn> = (0..75).map(|_| rig.connect_and_send(&[])).collect();
    queue.iter().for_each(ask);
    rig.proxy.signal(Signal::TERM);
    rig.proxy.wait_logged("accepting no more");
    thread::sleep(Duration::from_millis(100));
    slow.iter().for_each(ask);
    for _ in 0..slow.len() + queue.len() {
        let up = rig.backend_v4.accept();
        assert_eq!(up.recv(3), b"ask");
        up.send(b"yes");
    }
    for down in slow.into_iter().chain(queue) {
        assert_eq!(down.recv_to_end(), (b"yes".to_vec(), End::Fin));
    }
}

/// None of a thousand half-done transfers is cut short, and the drain ends soon after the last of them.
#[test]
fn draining_proxy_finishes_a_thousand_transfers() {
    peername_sys::process::limits::raise_open_files()
        .expect("descriptors for a thousand connections");
    let mut rig = ProxyRig::new(&["--drain=30s"]);
    let pairs: Vec<(Conn, Conn)> = (0..1000)
        .map(|_| rig.connect_client(fresh_client_v4()))
        .collect();
    let half = pattern(9, 16 << 10);
    pairs.iter().for_each(|(_, up)| up.send(&half));
    let start = Instant::now();
    rig.proxy.signal(Signal::TERM);
    rig.lab.balancer.wait_connection_refused(LISTEN_V4);
    assert_finish(&pairs, &half);
    rig.proxy.wait_success(Duration::from_secs(2));
    assert!(start.elapsed() < Duration::from_secs(31));
}

/// Sends the second half of each transfer, and asserts that both halves arrive.
#[track_caller]
fn assert_finish(pairs: &[(Conn, Conn)], half: &[u8]) {
    let whole = half.repeat(2);
    for (down, up) in pairs {
        up.send(half);
        up.shutdown_write();
        down.shutdown_write();
        let (received, end) = down.recv_to_end();
        assert_eq!(end, End::Fin);
        assert_same(&received, &whole);
    }
}

/// Waits for the line with the reason and the number of connections that are open at the end of a drain.
fn wait_drain_ended(rig: &ProxyRig, reason: &str, connections: usize) {
    let reason = format!("drain ended: {reason}");
    let connections = format!("\"connections\":{connections}");
    rig.proxy.wait_logged_parts(&[&reason, &connections]);
}

#[test]
fn drain_that_a_second_signal_ends_says_so() {
    let mut rig = ProxyRig::new(&["--drain=60s"]);
    let _open = rig.connect_client(fresh_client_v4());
    rig.proxy.signal(Signal::TERM);
    rig.proxy.wait_logged("accepting no more");
    rig.proxy.signal(Signal::TERM);
    rig.proxy.wait_success(Duration::from_secs(2));
    wait_drain_ended(&rig, "by a signal", 1);
}

#[test]
fn drain_deadline_resets_what_is_open() {
    let mut rig = ProxyRig::new(&["--drain=500ms"]);
    let (down, up) = rig.connect_client(fresh_client_v4());
    down.assert_reaches(&up, b"12");
    let start = Instant::now();
    rig.proxy.signal(Signal::TERM);
    for conn in [down, up] {
        // Closed with RST: a FIN would look like a complete answer.
        assert_eq!(conn.recv_to_end(), (vec![], End::Reset));
    }
    assert!(
        start.elapsed() >= Duration::from_millis(490),
        "ended after {:?}",
        start.elapsed()
    );
    rig.proxy.wait_success(Duration::from_secs(1));
    wait_drain_ended(&rig, "its time is over", 1);
    // A connection that was cut short has its log line, too, and its bytes are counted.
    rig.proxy.wait_logged(r#""bytes_to_upstream":2,"#);
    assert_eq!(rig.proxy.outcomes(), ["cut"]);
}

/// Without open connections there is nothing to drain.
#[test]
fn idle_proxy_stops_at_once() {
    let mut rig = ProxyRig::new(&[]);
    rig.proxy.signal(Signal::TERM);
    rig.proxy.wait_success(Duration::from_secs(1));
}

/// On SIGTERM a proxy exits with success even while it still probes the reply path, which takes a second when no reply comes
/// back. Otherwise its supervisor would take the exit for a crash.
#[test]
fn proxy_stops_during_the_reply_path_probe() {
    let lab = Lab::without_routes();
    let mut proxy = Peername::proxy(&lab, &[]);
    proxy.signal(Signal::TERM);
    proxy.wait_success(Duration::from_secs(3));
}

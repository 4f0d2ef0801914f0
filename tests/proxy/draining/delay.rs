//! `--drain-delay`: after SIGTERM `/readyz` is 503 before the first client is refused, so that a balancer notices in time.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4, v4};
use crate::harness::admin::{ADMIN, get};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::datagram::DatagramSocket;
use crate::harness::lab::{Lab, wait_for};
use crate::harness::peername::Peername;
use crate::harness::rig::proxy::{ProxyRig, header_for};
use crate::harness::rig::udp::datagram_header_for;

#[test]
fn clients_are_accepted_while_the_drain_is_announced() {
    let mut rig = ProxyRig::new(&[ADMIN, "--drain-delay=2s", "--protocol=both"]);
    let host = &rig.lab.server;
    let backend = DatagramSocket::bind(host, TARGET_V4);
    let balancer = DatagramSocket::bind(&rig.lab.balancer, v4([10, 81, 0, 2], 0));
    let begin = Instant::now();
    rig.proxy.signal(Signal::TERM);
    wait_for("unreadiness", || {
        (get(host, &[], "/readyz") == "draining\n503").then_some(())
    });
    let (down, up) = rig.connect_client(fresh_client_v4());
    let client = fresh_client_v4();
    balancer.send(LISTEN_V4, &[&datagram_header_for(client), b"ping"]);
    assert_eq!(backend.recv(), (b"ping".to_vec(), client));
    rig.lab.balancer.wait_connection_refused(LISTEN_V4);
    assert!(begin.elapsed() >= DELAY, "{:?}", begin.elapsed());
    down.send(b"ping");
    assert_eq!(up.recv(4), b"ping");
    drop((down, up, backend));
    let status = rig.proxy.wait_exit(Duration::from_secs(5));
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
}

#[test]
fn second_sigterm_ends_the_delay_at_once() {
    let mut rig = ProxyRig::new(&[ADMIN, "--drain-delay=60s"]);
    let (down, _up) = rig.connect_client(fresh_client_v4());
    rig.proxy.signal(Signal::TERM);
    wait_for("unreadiness", || {
        (get(&rig.lab.server, &[], "/readyz") == "draining\n503").then_some(())
    });
    rig.proxy.signal(Signal::TERM);
    let status = rig.proxy.wait_exit(Duration::from_secs(2));
    assert_eq!(status.and_then(|status| status.code()), Some(0));
    down.wait_closed();
}

#[test]
fn forward_accepts_while_its_drain_is_announced() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let args = [
        "forward",
        "--listen=10.81.0.1:8443",
        "--to=127.0.0.1:9000",
        "--drain-delay=60s",
        ADMIN,
    ];
    let forward = Peername::start(&lab.server, &args, &[LISTEN_V4]);
    forward.signal(Signal::TERM);
    wait_for("unreadiness", || {
        (get(&lab.server, &[], "/readyz") == "draining\n503").then_some(())
    });
    let _down = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &header_for(fresh_client_v4()));
    backend.accept();
}

/// `--drain-delay=2s`, but for the time from the signal to its handling.
const DELAY: Duration = Duration::from_millis(1990);

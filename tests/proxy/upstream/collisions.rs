//! Collisions: the 4-tuple that a client needs is in use, or was until a moment ago.

use std::thread::sleep;
use std::time::Duration;

use crate::harness::addr::{fresh_client_v4, v4};
use crate::harness::conn::{Conn, End};
use crate::harness::header_bytes::nlb_health_check;
use crate::harness::rig::proxy::{ProxyRig, header_for};

/// Two live connections claim the same endpoint (two balancers, a looped header): the second keeps the
/// address and gets another port.
#[test]
fn second_live_connection_keeps_the_address() {
    let rig = ProxyRig::new(&[]);
    let client = fresh_client_v4();
    let (first_down, first_up) = rig.connect_client(client);
    let second_down = rig.connect_and_send(&header_for(client));
    let second_up = rig.backend_v4.accept();
    assert_eq!(second_up.peer_addr().ip(), client.ip());
    assert_ne!(second_up.peer_addr().port(), client.port());
    for (down, up) in [(&first_down, &first_up), (&second_down, &second_up)] {
        down.send(&down.local_addr().port().to_be_bytes());
        assert_eq!(up.recv(2), down.local_addr().port().to_be_bytes());
    }
}

/// With the option that requires the exact endpoint, the second connection is refused, and the first one goes on.
#[test]
fn second_live_connection_is_refused_on_request() {
    let rig = ProxyRig::new(&["--on-port-collision=fail"]);
    let client = fresh_client_v4();
    let (down, up) = rig.connect_client(client);
    let (_, elapsed) = rig.connect_and_send(&header_for(client)).wait_closed();
    assert!(
        elapsed < Duration::from_secs(3),
        "refused only after {elapsed:?}"
    );
    rig.backend_v4.assert_no_connection();
    down.assert_reaches(&up, b"alive");
}

/// A client that comes back from the same port a hundred times is seen as itself each time: the previous
/// connection may be in TIME_WAIT on either side, or not quite closed. go-mmproxy lost a third of these, nginx 99
/// of 100.
#[test]
fn endpoint_is_reused_after_the_client_closed() {
    assert_endpoint_reused(|down, up| {
        down.shutdown_write();
        assert_eq!(up.recv_to_end(), (vec![], End::Fin));
        drop(up);
        assert_eq!(down.recv_to_end(), (vec![], End::Fin));
    });
}

#[test]
fn endpoint_is_reused_after_the_backend_closed() {
    assert_endpoint_reused(|down, up| {
        up.shutdown_write();
        assert_eq!(down.recv_to_end(), (vec![], End::Fin));
        drop(down);
        assert_eq!(up.recv_to_end(), (vec![], End::Fin));
    });
}

/// A reset leaves no TIME_WAIT.
#[test]
fn endpoint_is_reused_after_a_reset() {
    assert_endpoint_reused(|down, up| {
        down.reset();
        assert_eq!(up.recv_to_end(), (vec![], End::Reset));
    });
}

#[track_caller]
fn assert_endpoint_reused(close: impl Fn(Conn, Conn)) {
    let rig = ProxyRig::new(&["--on-port-collision=fail"]);
    for gap in GAPS {
        let client = fresh_client_v4();
        for _ in 0..100 {
            let (down, up) = rig.connect_client(client);
            close(down, up);
            sleep(gap);
        }
    }
}

/// connect(2) selects no port on which any socket was bound by number, and every client's port is. A proxy
/// with clients on all ports of the ephemeral range (here a hundred) must still be able to connect with its
/// own address, or health checks fail and the reply path seems broken.
#[test]
fn clients_do_not_exhaust_the_ephemeral_ports() {
    let rig = ProxyRig::new(&[]);
    rig.lab
        .server
        .sysctl("net.ipv4.ip_local_port_range", "40000 40099");
    let client = |port| v4([198, 51, 100, 7], port);
    let _busy: Vec<(Conn, Conn)> = (40000..40100)
        .map(|port| rig.connect_client(client(port)))
        .collect();
    let _check = rig.connect_and_send(&nlb_health_check());
    assert!(rig.backend_v4.accept().peer_addr().ip().is_loopback());
    // A client with a port that is taken gets another one, too.
    let other = v4([198, 51, 100, 8], 40000);
    let (_first, up) = rig.connect_client(other);
    assert_eq!(up.peer_addr(), other);
    let _again = rig.connect_and_send(&header_for(other));
    assert_eq!(rig.backend_v4.accept().peer_addr().ip(), other.ip());
}

/// With `--source-port any` no client needs a port of its own, so a collision is not what is wrong where none is left.
#[test]
fn want_of_any_port_is_no_collision() {
    let rig = ProxyRig::new(&["--source-port=any"]);
    rig.lab
        .server
        .sysctl("net.ipv4.ip_local_port_range", "40000 40007");
    let connect = |port| rig.connect_and_send(&header_for(v4([198, 51, 100, 7], port)));
    let _open: Vec<(Conn, Conn)> = (1..9)
        .map(|port| (connect(port), rig.backend_v4.accept()))
        .collect();
    let _ = connect(9).wait_closed();
    rig.proxy.wait_outcome("local_error");
    rig.proxy.wait_logged("widen net.ipv4.ip_local_port_range");
}

const GAPS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(5)];

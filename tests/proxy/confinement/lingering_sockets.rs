//! Other users of the host can't delay a process by sending it sockets (SCM_RIGHTS). Closing a socket with SO_LINGER blocks the
//! thread that closes it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::addr::{CLIENT_V4, FRONT_V4, fresh_client_v4, v4};
use crate::harness::admin::{ADMIN, get};
use crate::harness::header_bytes;
use crate::harness::lab::{Host, Process, Scratch, poll_until};
use crate::harness::programs::stranger::{send_lingering_socket_to, send_lingering_sockets};
use crate::harness::rig::proxy::ProxyRig;

/// An ordinary user sends sockets to each abstract Unix socket of the host. Health, bans, the refusal of new own addresses and
/// the drain work on.
#[test]
fn lingering_socket_of_another_user_delays_nothing() {
    assert_nothing_is_delayed(|host, process, _| send_lingering_sockets(host, process));
}

/// A user that may connect to the admin endpoint sends a socket to it. Health, bans and the drain work on.
#[test]
fn lingering_socket_sent_to_the_admin_endpoint_delays_nothing() {
    assert_nothing_is_delayed(send_lingering_socket_to);
}

fn assert_nothing_is_delayed(send: impl FnOnce(&Host, &Process, &str) -> Process) {
    let scratch = Scratch::new();
    let list = scratch.write("denied", "");
    let socket = scratch.path_text("admin.sock");
    let mut rig = ProxyRig::new(&[
        ADMIN,
        &format!("--admin=unix:{socket}"),
        &format!("--deny-client=@{list}"),
    ]);
    rig.assert_serves(fresh_client_v4());
    let _sender = send(&rig.lab.server, &rig.proxy, &socket);
    assert_healthy(&rig.lab.server);
    scratch.write("denied", &format!("{}\n", CLIENT_V4.ip()));
    assert_refused_within_a_second(&rig, CLIENT_V4, "client_denied");
    let own = v4([10, 81, 0, 77], 4000);
    rig.lab.server.add_addresses("eth0", &["10.81.0.77/24"]);
    assert_refused_within_a_second(&rig, own, "source_own_address");
    rig.assert_serves(fresh_client_v4());
    assert_ends(&mut rig.proxy);
}

#[track_caller]
fn assert_healthy(host: &Host) {
    let answer = get(host, &["--max-time", "2"], "/healthz");
    assert!(answer.ends_with("200"), "{answer}");
}

/// Asserts that within a second, connections that claim `client` are refused with this outcome.
#[track_caller]
fn assert_refused_within_a_second(rig: &ProxyRig, client: SocketAddr, outcome: &str) {
    let refused = poll_until(Instant::now() + Duration::from_secs(1), || {
        let header = header_bytes::v2(client, FRONT_V4, &[]);
        let down = rig.connect_and_send(&header);
        let is_open = down.is_open_after(Duration::from_millis(50));
        // Until the change is in force, the client is served.
        drop(rig.backend_v4.accept_within(Duration::from_millis(1)));
        (!is_open && rig.proxy.outcomes().iter().any(|seen| seen == outcome)).then_some(())
    });
    assert!(refused.is_some(), "{outcome}:\n{}", rig.proxy.log());
}

/// Asserts that SIGTERM ends the process soon, because no connection is open.
#[track_caller]
fn assert_ends(process: &mut Process) {
    process.signal(Signal::TERM);
    process.wait_success(Duration::from_secs(5));
}

//! Reload of UDP listeners: a session keeps the configuration that it began with.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::{PRIVILEGED, ReloadRig, table};
use crate::harness::addr::{BALANCER_V4, LISTEN_V4, TARGET_V4, fresh_client_v4, server_v4, v4};
use crate::harness::admin::{self, ADMIN, read_limit};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::{Lab, Process, Scratch, wait_for, wait_until};
use crate::harness::peername::BINARY;
use crate::harness::rig::proxy::front_of;
use crate::harness::rig::udp::datagram_header_for;

/// A reload adds and removes UDP listeners as a whole. Sessions of listeners that stay go on, but datagrams of a peer that is
/// no longer trusted are dropped.
#[test]
fn reload_changes_udp_listeners_and_trust() {
    let both = "protocol = \"both\"\n";
    let one_listener = table(LISTEN_V4, &["10.81.0.0/24"]) + both;
    let two_listeners = format!(
        "{one_listener}{}{both}",
        table(PRIVILEGED, &["10.81.0.0/24"])
    );
    let rig = ReloadRig::new(&one_listener);
    let backend = DatagramSocket::bind(&rig.lab.server, TARGET_V4);
    let balancer = DatagramSocket::bind(&rig.lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    let client = fresh_client_v4();
    let send = |listen, text: &[u8]| {
        balancer.send(
            listen,
            &[&header_bytes::v2_udp(client, front_of(client)), text],
        );
    };
    let assert_answered = |listen, text: &[u8]| {
        send(listen, text);
        backend.expect_datagram(text, client);
        backend.send(client, &[b"!"]);
        balancer.expect_datagram(b"!", listen);
    };
    assert_answered(LISTEN_V4, b"1");
    rig.reload(&two_listeners, "\"reloaded\"");
    assert_answered(LISTEN_V4, b"2");
    let changed = two_listeners.replace("protocol", "udp-header = \"spp\"\nprotocol");
    rig.reload(&changed, "can't change without a restart");
    // An address that a reload adds to a table would have limits of its own, and be refused at each upgrade.
    let wider = one_listener.replace("8443\"]", "8443\", \"10.81.0.1:8109\"]");
    rig.reload(&wider, "further addresses need a table of their own");
    rig.reload(&one_listener, "\"reloaded\"");
    assert_answered(LISTEN_V4, b"3");
    rig.reload(
        &one_listener.replace("10.81.0.0/24", "192.0.2.0/24"),
        "\"reloaded\"",
    );
    send(LISTEN_V4, b"unheard");
    rig.proxy.wait_logged("datagrams refused: untrusted_peer");
    rig.reload(&one_listener, "\"reloaded\"");
    assert_answered(LISTEN_V4, b"4");
    let totals = rig.stop();
    assert_eq!(totals["udp_sessions"], 1, "{totals}");
    assert_eq!(totals["datagrams_dropped"], "untrusted_peer=1", "{totals}");
}

/// While a removed listener still serves its sessions, a reload adds listeners with another target. They do not get its
/// datagrams.
#[test]
fn added_listener_does_not_take_over_sessions_of_a_removed_one() {
    let udp = |port| udp_table(server_v4(port));
    let without_udp = table(LISTEN_V4, &["10.81.0.0/24"]);
    let rig = ReloadRig::new(&(without_udp.clone() + &udp(8101)));
    let backend = DatagramSocket::bind(&rig.lab.server, TARGET_V4);
    let balancer = DatagramSocket::bind(&rig.lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    let client = fresh_client_v4();
    let send = |text: &[u8]| {
        let header = header_bytes::v2_udp(client, front_of(client));
        balancer.send(server_v4(8101), &[&header, text]);
    };
    send(b"before");
    backend.expect_datagram(b"before", client);
    for port in [8102, 8103] {
        rig.reload(&without_udp, "\"reloaded\"");
        // Traffic keeps the session of the removed listener alive.
        backend.send(client, &[b"media"]);
        let other_target = udp(port).replace(&TARGET_V4.to_string(), "127.0.0.1:9");
        rig.reload(&(without_udp.clone() + &other_target), "\"reloaded\"");
        backend.send(client, &[b"media"]);
        send(b"after");
        backend.expect_datagram(b"after", client);
    }
}

/// Sessions are not affected when a reload removes their listener; no new session begins; and the port is
/// free once they are idle.
#[test]
fn open_udp_sessions_outlive_their_listener() {
    assert_sessions_outlive_their_listener("");
}

/// Beside another address of IPv4, a socket for `[::]` is opened for IPv6 only.
#[test]
fn open_udp_sessions_outlive_their_listener_beside_a_wildcard_for_ipv6_only() {
    let others = ["[::]:8101", "127.0.0.1:8101"]
        .map(|addr| table(addr.parse().unwrap(), &["any"]) + "protocol = \"udp\"\n");
    assert_sessions_outlive_their_listener(&others.concat());
}

#[track_caller]
fn assert_sessions_outlive_their_listener(others: &str) {
    let without_udp = table(LISTEN_V4, &["10.81.0.0/24"]) + others;
    let with_udp = without_udp.clone() + &udp_table(server_v4(8101));
    let rig = ReloadRig::new(&with_udp);
    let backend = DatagramSocket::bind(&rig.lab.server, TARGET_V4);
    let balancer = DatagramSocket::bind(&rig.lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    let send = |client, text: &[u8]| {
        let header = header_bytes::v2_udp(client, front_of(client));
        balancer.send(server_v4(8101), &[&header, text]);
    };
    let client = fresh_client_v4();
    let assert_answered = |text: &[u8]| {
        send(client, text);
        backend.expect_datagram(text, client);
        backend.send(client, &[b"!"]);
        balancer.expect_datagram(b"!", server_v4(8101));
    };
    assert_answered(b"1");
    rig.reload(&without_udp, "\"reloaded\"");
    for _ in 0..20 {
        assert_answered(b"2");
        thread::sleep(Duration::from_millis(100));
    }
    send(v4([198, 51, 100, 8], 4000), b"new");
    backend.assert_silent();
    assert_answered(b"2");
    rig.reload(&with_udp, "still drains its sessions");
    let bind = || UdpSocket::bind(server_v4(8101)).ok();
    wait_for("the port is free", || rig.lab.server.enter(bind));
    rig.reload(&with_udp, "\"reloaded\"");
    assert_answered(b"3");
}

/// One session goes on, the idle one ends. The descriptors of the listeners are left to connections once no session holds any.
#[test]
fn removed_udp_listener_keeps_descriptors_for_active_sessions_only() {
    let without_udp = table(LISTEN_V4, &["10.81.0.0/24"]);
    let with_udp = without_udp.clone() + &udp_table(server_v4(8101));
    let few_descriptors = ["prlimit", "--nofile=512:512"];
    let rig = ReloadRig::start_through(&few_descriptors, &with_udp, &["--workers=1", ADMIN]);
    let backend = DatagramSocket::bind(&rig.lab.server, TARGET_V4);
    let balancer = DatagramSocket::bind(&rig.lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    let assert_answered = |client| {
        let header = datagram_header_for(client);
        balancer.round_trip(server_v4(8101), &header, &backend, client);
    };
    let (idle, active) = (fresh_client_v4(), fresh_client_v4());
    assert_answered(idle);
    assert_answered(active);
    let before = read_limit(&rig.lab.server);
    rig.reload(&without_udp, "\"reloaded\"");
    let mut listed = 2;
    wait_until("the idle session has ended", || {
        assert_answered(active);
        assert_eq!(read_limit(&rig.lab.server), before);
        assert_answered(active);
        listed = admin::list(&rig.lab.server, &[], "/sessions").len();
        listed < 2
    });
    assert_eq!(listed, 1);
    assert_answered(active);
    wait_until("the descriptors are released", || {
        read_limit(&rig.lab.server) > before
    });
}

/// Connections hold the other descriptors, or may.
#[test]
fn reload_warns_of_a_limit_of_sessions_below_the_requested_one() {
    let without_udp = table(LISTEN_V4, &["10.81.0.0/24"]);
    let with_udp = without_udp.clone() + &udp_table(server_v4(8101));
    let few_descriptors = ["prlimit", "--nofile=256:256"];
    let rig = ReloadRig::start_through(&few_descriptors, &without_udp, &["--workers=1"]);
    let _open = rig.connect(LISTEN_V4);
    rig.reload(&with_udp, "UDP sessions at 10.81.0.1:8101 are limited to ");
    rig.proxy.wait_logged("\"reloaded\"");
}

/// The group that is replaced has seven eighths of the descriptors.
#[test]
fn replaced_udp_listeners_leave_their_descriptors_to_the_new_ones() {
    let (lab, files) = (Lab::new(), Scratch::new());
    let write = |listen| {
        let udp = udp_table(listen);
        files.write("proxy.toml", &udp)
    };
    let config = write(LISTEN_V4);
    let through = ["prlimit", "--nofile=512:512"];
    let args = [
        "proxy",
        "--log-format=json",
        "--workers=1",
        "--config",
        &config,
    ];
    let proxy = Process::start_through(&lab.server, &through, BINARY, &args);
    proxy.wait_logged("\"listening\"");
    write(v4([0, 0, 0, 0], LISTEN_V4.port()));
    proxy.signal(Signal::HUP);
    let warning = proxy.wait_logged("are limited to ");
    let (_, after) = warning.split_once("are limited to ").expect("a limit");
    let sessions = after.split(' ').next().and_then(|text| text.parse().ok());
    assert!(sessions > Some(256), "{warning}");
}

/// Otherwise one client could keep the descriptors of a removed listener from connections for ever.
#[test]
fn active_session_of_a_removed_listener_ends_after_the_drain_time() {
    let without_udp = table(LISTEN_V4, &["10.81.0.0/24"]);
    let with_udp = without_udp.clone() + &udp_table(server_v4(8101));
    let rig = ReloadRig::start_through(&[], &with_udp, &["--workers=1", "--drain=3s", ADMIN]);
    let backend = DatagramSocket::bind(&rig.lab.server, TARGET_V4);
    let balancer = DatagramSocket::bind(&rig.lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    let client = fresh_client_v4();
    let header = header_bytes::v2_udp(client, front_of(client));
    let send = || balancer.send(server_v4(8101), &[&header, b"?"]);
    send();
    backend.expect_datagram(b"?", client);
    let before = read_limit(&rig.lab.server);
    rig.reload(&without_udp, "\"reloaded\"");
    wait_until("the session has ended", || {
        send();
        admin::list(&rig.lab.server, &[], "/sessions").is_empty()
    });
    wait_until("the descriptors are released", || {
        read_limit(&rig.lab.server) > before
    });
}

/// A table of a UDP listener that trusts the balancers.
fn udp_table(listen: SocketAddr) -> String {
    table(listen, &["10.81.0.0/24"]) + "protocol = \"udp\"\n"
}

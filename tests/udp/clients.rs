//! Lists of clients over UDP: a denied client gets no session, and a ban ends the one that it has.

use std::fs;
use std::time::Duration;

use super::dialects::header_in_dialect;
use crate::harness::addr::{CLIENT_V4, FRONT_V4, LISTEN_V4, TARGET_V4, fresh_client_v4, v4};
use crate::harness::admin::{self, ADMIN};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::{Lab, Scratch, assert_contains, wait_for, wait_until};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::proxy::front_of;
use crate::harness::rig::udp::{DIALECTS, UdpRig, datagram_header_for, start_forward};

#[test]
fn denied_client_gets_no_session_in_any_dialect() {
    for dialect in ["each", "first", "spp"] {
        let mut rig = UdpRig::new(&[
            &format!("--udp-header={dialect}"),
            "--deny-client=198.51.100.7",
            "--workers=1",
        ]);
        let (denied, other) = (fresh_client_v4(), v4([198, 51, 100, 8], 4001));
        rig.send_from_balancer(&[&header_in_dialect(dialect, denied), b"denied"]);
        if dialect == "first" {
            rig.send_from_balancer(&[b"a datagram of the flow"]);
        }
        rig.add_balancer_socket()
            .send(LISTEN_V4, &[&header_in_dialect(dialect, other), b"other"]);
        rig.backend_v4.expect_datagram(b"other", other);
        rig.proxy
            .wait_logged("for example client 198.51.100.7 through 10.81.0.2;");
        let drops = rig.stop_and_count_drops();
        let expected = if dialect == "first" { 2 } else { 1 };
        assert_eq!(drops.get("client_denied"), Some(&expected), "{drops:?}");
    }
}

/// A ban ends a session in user space, and a session in the kernel together with its flow. Once the ban is lifted, the client
/// is served again.
#[test]
fn ban_ends_the_session_and_its_flow_in_the_kernel() {
    for relay in ["userspace", "kernel"] {
        let list = Scratch::new();
        let file = list.write("denied", "");
        let rig = UdpRig::new(&[
            &format!("--data-path={relay}"),
            &format!("--deny-client=@{file}"),
            ADMIN,
        ]);
        let (denied, other) = (fresh_client_v4(), v4([198, 51, 100, 8], 4001));
        for client in [denied, other] {
            for _ in 0..40 {
                rig.round_trip(client);
            }
        }
        admin::wait_listed(&rig.lab.server, &[], "/sessions", |session| {
            session["relay"] == relay
        });
        let new = list.write("denied.new", "198.51.100.7\n");
        fs::rename(new, list.path("denied")).expect("a rename");
        let left = admin::wait_listed(&rig.lab.server, &[], "/sessions", |session| {
            session["client"] == other.to_string()
        });
        assert_eq!(left.len(), 1);
        rig.send_from_balancer(&[&datagram_header_for(denied), b"denied"]);
        rig.round_trip(other);
        rig.backend_v4.assert_silent();
        rig.proxy.wait_outcome("access_revoked");
        fs::write(list.path("denied"), "").expect("an empty list");
        wait_for("the client is served", || {
            rig.send_from_balancer(&[&datagram_header_for(denied), b"again"]);
            rig.backend_v4.recv_within(Duration::from_millis(20))
        });
    }
}

/// Datagrams without a header that follow a refused header on a flow are dropped, because they do not belong to the previous
/// client.
#[test]
fn header_without_the_required_tlv_ends_its_flow() {
    for dialect in ["each", "first"] {
        let rig = UdpRig::new(&[
            &format!("--udp-header={dialect}"),
            "--require-tlv=authority=example.org",
        ]);
        let (client, other) = (fresh_client_v4(), fresh_client_v4());
        let body = header_bytes::addresses(client, front_of(client));
        let tlv = header_bytes::tlv(2, b"example.org");
        let header = [&body[..], &tlv].concat();
        let header = header_bytes::raw(header_bytes::PROXY, header_bytes::DGRAM_V4, &header);
        rig.assert_delivered(&header, b"first", client);
        rig.send_from_balancer(&[&datagram_header_for(other), b"refused"]);
        rig.send_from_balancer(&[b"of the refused client"]);
        rig.assert_delivered(&header, b"last", client);
        rig.backend_v4.assert_silent();
    }
}

/// The balancer's own datagrams need neither an entry nor a TLV. They have a header without a client, or with the balancer's
/// address and port if it is listed in `--health-checks-from`.
#[test]
fn health_checks_need_no_entry_and_no_tlv() {
    for dialect in ["each", "first"] {
        let mut rig = UdpRig::new(&[
            &format!("--udp-header={dialect}"),
            "--allow-client=203.0.113.0/24",
            "--health-checks-from=10.81.0.2",
            "--require-tlv=authority=example.org",
        ]);
        let local = header_bytes::raw(header_bytes::LOCAL, header_bytes::UNSPEC, &[]);
        rig.send_from_balancer(&[&local, b"local"]);
        assert_eq!(rig.backend_v4.recv().0, b"local");
        let own = rig.add_balancer_socket();
        let header = datagram_header_for(own.socket().local_addr().expect("an address"));
        own.send(LISTEN_V4, &[&header, b"own"]);
        assert_eq!(rig.backend_v4.recv().0, b"own");
        // From another port the same header is a client's.
        rig.send_from_balancer(&[&header, b"of another socket"]);
        rig.backend_v4.assert_silent();
        let drops = rig.stop_and_count_drops();
        assert_eq!(drops.values().sum::<u64>(), 1, "{dialect}: {drops:?}");
    }
}

/// Behind a balancer that keeps its clients' addresses and ports, the client in the header is the peer itself. The lists judge
/// it nevertheless.
#[test]
fn client_is_judged_although_its_header_names_the_peer() {
    for (dialect, option, reason) in [
        ("each", "--deny-client=10.81.0.2", "client_denied"),
        ("first", "--deny-client=10.81.0.2", "client_denied"),
        ("spp", "--deny-client=10.81.0.2", "client_denied"),
        ("each", "--allow-client=203.0.113.9", "client_not_allowed"),
        ("first", "--allow-client=203.0.113.9", "client_not_allowed"),
        ("spp", "--allow-client=203.0.113.9", "client_not_allowed"),
        ("each", "--require-tlv=alpn=h3", "tlv_missing"),
        ("first", "--require-tlv=alpn=h3", "tlv_missing"),
    ] {
        let mut rig = UdpRig::new(&[&format!("--udp-header={dialect}"), option]);
        let own = rig.balancer.socket().local_addr().expect("an address");
        rig.send_from_balancer(&[&header_in_dialect(dialect, own), b"own"]);
        rig.backend_v4.assert_silent();
        let drops = rig.stop_and_count_drops();
        assert_eq!(drops.get(reason), Some(&1), "{dialect} {option}: {drops:?}");
    }
}

/// A health check has no client, so the ban is checked for the peer's address.
#[test]
fn ban_applies_to_health_checks() {
    for dialect in ["each", "first"] {
        let option = format!("--udp-header={dialect}");
        let mut rig = UdpRig::new(&[&option, "--deny-client=10.81.0.2"]);
        let local = header_bytes::raw(header_bytes::LOCAL, header_bytes::UNSPEC, &[]);
        rig.send_from_balancer(&[&local, b"local"]);
        rig.backend_v4.assert_silent();
        assert_eq!(rig.stop_and_count_drops().get("client_denied"), Some(&1));
    }
}

#[test]
fn required_tlv_is_refused_with_spp() {
    let lab = Lab::new();
    let args = words(
        "proxy --target=127.0.0.1:443 --trust=any --protocol=udp --udp-header=spp --require-tlv=alpn=h3",
    );
    assert_contains(
        &Peername::run_failing(&lab.server, &args, 2),
        &["--require-tlv"],
    );
}

/// `forward` reads no header, so its client is the peer.
#[test]
fn forward_denies_peers_and_ends_their_sessions() {
    for (sender, receiver) in DIALECTS {
        let (lab, list) = (Lab::new(), Scratch::new());
        let file = list.write("denied", "");
        let backend = DatagramSocket::bind(&lab.server, TARGET_V4);
        let _proxy = Peername::udp_proxy(&lab, &[], &[receiver]);
        let deny = format!("--deny-client=@{file}");
        let forward = start_forward(&lab, &[sender, &deny, ADMIN, "--log-format=json", "-v"]);
        let client = DatagramSocket::bind(&lab.client, CLIENT_V4);
        client.send(FRONT_V4, &[b"ask"]);
        backend.expect_datagram(b"ask", CLIENT_V4);
        list.write("denied", "203.0.113.9\n");
        forward.wait_outcome("access_revoked");
        client.send(FRONT_V4, &[b"denied"]);
        let dropped = "peername_udp_dropped_total{reason=\"client_denied\"} 1";
        admin::wait_metric(&lab.balancer, &[], dropped);
        backend.assert_silent();
    }
}

/// Sessions go on after a reload has removed their listener. A ban still ends them.
#[test]
fn forward_ends_sessions_of_a_removed_listener() {
    let (lab, files) = (Lab::new(), Scratch::new());
    let list = files.write("denied", "");
    let table = |port| {
        format!(
            "[[forward]]\nlisten = [\"203.0.113.1:{port}\"]\nto = \"10.81.0.1:7000\"\nprotocol = \"udp\"\n\
             proxy-version = \"none\"\ndeny-client = [\"@{list}\"]\n"
        )
    };
    let config = files.write("forward.toml", &(table(80) + &table(81)));
    let backend = DatagramSocket::bind(&lab.server, v4([10, 81, 0, 1], 7000));
    let args = ["forward", "--log-format=json", "-v", "--config", &config];
    let forward = Peername::start_listening(&lab.balancer, &args);
    let client = DatagramSocket::bind(&lab.client, CLIENT_V4);
    client.send(FRONT_V4, &[b"ask"]);
    assert_eq!(backend.recv().0, b"ask");
    files.write("forward.toml", &table(81));
    forward.reload("\"reloaded\"");
    files.write("denied", "203.0.113.9\n");
    wait_until("the session is ended", || {
        // A draining listener is closed once no datagram comes.
        client.send(FRONT_V4, &[b"more"]);
        let outcomes = forward.outcomes();
        outcomes.iter().any(|outcome| outcome == "access_revoked")
    });
    client.send(FRONT_V4, &[b"denied"]);
    while let Some((bytes, _)) = backend.recv_within(Duration::from_millis(50)) {
        assert_ne!(bytes, b"denied");
    }
}

//! Lists of clients: bans, allowed networks, and TLVs that a header must have. Nothing of a refused client reaches the backend.

mod changes;
mod unreadable;
mod unwatched;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Instant;

use crate::harness::addr::{FRONT_V4, LISTEN_V4, fresh_client_v4, fresh_client_v6, v4, v6};
use crate::harness::admin::{self, ADMIN};
use crate::harness::conn::{Conn, End};
use crate::harness::header_bytes;
use crate::harness::lab::{
    Host, Lab, Scratch, WAIT_LIMIT, assert_contains, stdout_text, wait_for, wait_until,
};
use crate::harness::peername::{Peername, words};
use crate::harness::programs::sender::Haproxy;
use crate::harness::programs::server::{Python, Redis, Server};
use crate::harness::rig::proxy::{ProxyRig, header_for};

#[test]
fn denied_client_does_not_reach_the_backend() {
    let list = Scratch::new();
    let path = list.write("denied", "198.51.100.7 # sshd\n2001:db8:7::/64\n");
    let rig = ProxyRig::new(&[&format!("--deny-client=@{path}"), ADMIN]);
    for client in [fresh_client_v4(), fresh_client_v6()] {
        assert_refused(&rig, client);
    }
    rig.connect_client(v4([198, 51, 100, 8], 4001));
    rig.connect_client(v6([0x2001, 0xdb8, 8, 0, 0, 0, 0, 7], 4001));
    assert_eq!(wait_outcomes(&rig, 2), ["client_denied"; 2]);
    let counted = "peername_denied_total{reason=\"client_denied\"} 2";
    admin::wait_metric(&rig.lab.server, &[], counted);
    let line = rig
        .proxy
        .wait_logged_parts(&["WARN", "connections refused"]);
    assert_contains(
        &line,
        &[
            "198.51.100.7/32",
            "for example client 198.51.100.7 through 10.81.0.2;",
        ],
    );
}

#[test]
fn deny_list_wins_over_allow_list() {
    let rig = ProxyRig::new(&[
        "--allow-client=198.51.100.0/24",
        "--deny-client=198.51.100.7",
    ]);
    assert_refused(&rig, fresh_client_v4());
    assert_refused(&rig, v4([198, 51, 101, 1], 4001));
    assert_refused(&rig, fresh_client_v6());
    rig.connect_client(v4([198, 51, 100, 8], 4001));
    let expected = ["client_denied", "client_not_allowed", "client_not_allowed"];
    let mut outcomes = wait_outcomes(&rig, expected.len());
    outcomes.sort();
    assert_eq!(outcomes, expected);
}

/// A banned IPv4 client stays banned where the balancer claims it as an IPv4-mapped IPv6 address.
#[test]
fn mapped_address_is_denied_as_the_address() {
    let rig = ProxyRig::new(&["--deny-client=198.51.100.7"]);
    let mapped = v6([0, 0, 0, 0, 0, 0xffff, 0xc633, 0x6407], 4001);
    assert_refused(&rig, mapped);
    assert_eq!(wait_outcomes(&rig, 1), ["client_denied"]);
}

/// The header of a health check names no client: it is LOCAL or UNKNOWN, or in version 1 it names the balancer's own address
/// and port. The last form is accepted from `--health-checks-from`, by default from this host.
#[test]
fn health_checks_need_no_entry_and_no_tlv() {
    let listed = ["--health-checks-from=10.81.0.2/31", "--trust=any"];
    let rig = ProxyRig::new(&[&LISTS_THAT_REFUSE_PEERS[..], &listed].concat());
    for (what, bytes) in header_bytes::without_client() {
        let down = rig.connect_and_send(&bytes);
        down.send(what.as_bytes());
        let up = rig.backend_v4.accept();
        assert_eq!(up.recv(what.len()), what.as_bytes());
    }
    assert_own_connection_is_served(&rig, &rig.lab.balancer);
    // The list replaces the default.
    assert_own_connection_is_refused(&rig, &rig.lab.server);
    let by_default = ProxyRig::new(&[&LISTS_THAT_REFUSE_PEERS[..], &["--trust=any"]].concat());
    assert_own_connection_is_served(&by_default, &by_default.lab.server);
}

/// Behind a transparent balancer (AWS NLB, HAProxy with `usesrc client`), the client in the header is the peer itself. It is
/// judged by the lists, unlike a health check, whose header has the same form.
#[test]
fn client_is_judged_although_its_header_names_the_peer() {
    let rig = ProxyRig::new(&["--allow-client=203.0.113.0/24"]);
    assert_own_connection_is_refused(&rig, &rig.lab.balancer);
    assert_eq!(wait_outcomes(&rig, 1), ["client_not_allowed"]);
    rig.proxy.wait_logged("--health-checks-from");
    let rig = ProxyRig::new(&["--require-tlv=authority=example.org"]);
    assert_own_connection_is_refused(&rig, &rig.lab.balancer);
    assert_eq!(wait_outcomes(&rig, 1), ["tlv_missing"]);
    rig.proxy.wait_logged("--health-checks-from");
}

/// The health checks of a banned peer are refused: headers with the peer's own address and port, and those without a client.
#[test]
fn ban_applies_to_health_checks() {
    let rig = ProxyRig::new(&["--deny-client=10.81.0.2", "--health-checks-from=10.81.0.2"]);
    assert_own_connection_is_refused(&rig, &rig.lab.balancer);
    let without_client = header_bytes::without_client();
    for (what, bytes) in &without_client {
        let down = rig.connect_and_send(bytes);
        assert_eq!(down.wait_closed().0, End::Reset, "{what}");
    }
    rig.assert_no_backend_connection();
    let outcomes = wait_outcomes(&rig, 1 + without_client.len());
    assert!(
        outcomes.iter().all(|outcome| outcome == "client_denied"),
        "{outcomes:?}"
    );
}

/// A transparent HAProxy connects from the client's address and port, so its header names its own end of the connection.
#[test]
fn denied_client_of_a_transparent_balancer_does_not_reach_the_backend() {
    for (denied, is_served) in [("203.0.113.9", false), ("192.0.2.1", true)] {
        let lab = Lab::new();
        lab.server.ip("route add 203.0.113.0/24 via 10.81.0.2");
        lab.balancer.ip("rule add iif lan from 10.81.0.1 table 9
             route add local 0.0.0.0/0 dev lo table 9");
        let _server = Python::start(&lab.server);
        let deny = format!("--deny-client={denied}");
        let proxy = Peername::proxy(&lab, &["--trust=any", &deny]);
        let options = "send-proxy-v2 source 0.0.0.0 usesrc client";
        let _haproxy = Haproxy::start(&lab, LISTEN_V4, options);
        let conn = Conn::connect_and_send(&lab.client, FRONT_V4, b"hello\n");
        let report = conn.recv_text_to_end();
        assert_eq!(report.contains("203.0.113.9"), is_served, "{report}");
        if !is_served {
            proxy.wait_outcome("client_denied");
        }
    }
}

/// HAProxy on another host checks with LOCAL, or with its own address and port in version 1. Without lists both pass; with an
/// allow list, checks of version 1 pass only from addresses of `--health-checks-from`.
#[test]
fn haproxy_health_checks_pass_where_they_are_listed() {
    for (send, options, state) in [
        ("send-proxy", &[][..], "UP"),
        ("send-proxy-v2", &["--allow-client=203.0.113.9"], "UP"),
        ("send-proxy", &["--allow-client=203.0.113.9"], "DOWN"),
        (
            "send-proxy",
            &[
                "--allow-client=203.0.113.9",
                "--health-checks-from=10.81.0.2",
            ],
            "UP",
        ),
    ] {
        let lab = Lab::new();
        let _server = Redis::start(&lab.server);
        let proxy = Peername::proxy(&lab, options);
        let send = format!("check-send-proxy {send}");
        let haproxy = Haproxy::start_checking_redis(&lab, LISTEN_V4, &send);
        haproxy.wait_server_state(&lab, state);
        if state == "DOWN" {
            proxy.wait_logged("--health-checks-from");
        }
    }
}

#[test]
fn header_without_the_required_tlvs_is_refused() {
    let rig = ProxyRig::new(&words(
        "--require-tlv=aws-vpce-id=vpce-08d2bf15fac5001c9 --require-tlv=aws-vpce-id=vpce-0123 \
         --require-tlv=0xE4=CAFE",
    ));
    let vpce = |id: &str| header_bytes::tlv(0xea, &[b"\x01", id.as_bytes()].concat());
    let custom = header_bytes::tlv(0xe4, &[0xca, 0xfe]);
    let connect = |tlvs: &[u8]| {
        let client = fresh_client_v4();
        let header = header_bytes::v2(client, FRONT_V4, tlvs);
        (client, rig.connect_and_send(&header))
    };
    for id in ["vpce-08d2bf15fac5001c9", "vpce-0123"] {
        let (client, _down) = connect(&[vpce(id), custom.clone()].concat());
        rig.accept_client(client);
    }
    for tlvs in [
        Vec::new(),
        vpce("vpce-0123"),
        custom.clone(),
        [vpce("vpce-0124"), custom.clone()].concat(),
        [vpce("vpce-0123"), vpce("vpce-0124"), custom].concat(),
    ] {
        let (_, down) = connect(&tlvs);
        down.wait_reset();
    }
    // Version 1 has no TLVs.
    let header = header_bytes::v1(fresh_client_v4(), FRONT_V4);
    rig.connect_and_send(&header).wait_reset();
    rig.assert_no_backend_connection();
    let (missing, mismatch) = ("tlv_missing", "tlv_mismatch");
    let expected = [mismatch, mismatch, missing, missing, missing, missing];
    // The workers log them in any order.
    let mut outcomes = wait_outcomes(&rig, expected.len());
    outcomes.sort();
    assert_eq!(outcomes, expected);
}

/// Each entry is nearly as long as an address can be, so that the file is large as well.
#[test]
fn hundred_thousand_entries_are_in_force() {
    let list = Scratch::new();
    let entry = |number: u32| {
        format!(
            "2001:db8:1111:2222:3333:4444:{:x}:{:x}\n",
            0x1000 + (number >> 12),
            0x1000 + (number & 0xfff)
        )
    };
    let text: String = (0..100_000).map(entry).collect();
    let path = list.write("denied", &text);
    let rig = ProxyRig::new(&[&format!("--deny-client=@{path}")]);
    let client = |low| {
        v6(
            [0x2001, 0xdb8, 0x1111, 0x2222, 0x3333, 0x4444, 0x1018, low],
            4001,
        )
    };
    // The last entry, and the address after it.
    assert_refused(&rig, client(0x169f));
    rig.connect_client(client(0x16a0));
}

#[test]
fn invalid_lists_are_reported_at_the_start_and_by_config_check() {
    let (rig, files) = (ProxyRig::new(&[]), Scratch::new());
    let broken = files.write("broken", "# bans\n192.0.2.1\n192.0.2.0/33\n");
    let error = format!(
        "deny-client @{broken}, line 3: \"192.0.2.0/33\" is neither a network nor an address"
    );
    let config = files.write(
        "proxy.toml",
        &format!("[[listen]]\ntarget = \"127.0.0.1:443\"\ntrust = [\"any\"]\ndeny-client = [\"@{broken}\"]\n\n[[forward]]\nlisten = [\"127.0.0.1:81\"]\nto = \"192.0.2.1:80\"\ndeny-client = [\"@{broken}\"]\n"),
    );
    let checked = Peername::run(&rig.lab.server, &["config", "check", &config]);
    let text = stdout_text(&checked);
    assert_eq!(checked.status.code(), Some(3), "{text}");
    assert_eq!(text.matches(&error).count(), 2, "{text}");
    let text = Peername::run_failing(
        &rig.lab.server,
        &[
            "proxy",
            "--target=[::1]:1",
            "--trust=any",
            &format!("--deny-client=@{broken}"),
        ],
        2,
    );
    assert!(text.contains(&error), "{text}");
}

/// `forward` reads no header, so its client is the peer.
#[test]
fn forward_denies_peers() {
    for (option, outcome) in [
        ("--deny-client=203.0.113.9", "client_denied"),
        ("--allow-client=192.0.2.0/24", "client_not_allowed"),
    ] {
        let rig = ProxyRig::new(&[]);
        let line = format!(
            "forward --listen=203.0.113.1:80 --listen=[2001:db8:9::1]:80 --to=10.81.0.1:8443 \
             --log-format=json -v {option}"
        );
        let args = words(&line);
        let forward = Peername::start(&rig.lab.balancer, &args, &[FRONT_V4]);
        wait_until(outcome, || {
            // The lists, which are read once more at the start, may end a connection before it is judged.
            Conn::assert_refused(&rig.lab.client, FRONT_V4);
            forward.outcomes().iter().any(|seen| seen == outcome)
        });
        rig.assert_no_backend_connection();
    }
}

/// The lists are read once more at the start, which may end a connection before the worker has begun to serve it.
#[test]
fn every_connection_that_is_denied_at_the_start_has_an_outcome() {
    let lab = Lab::new();
    let args = words(
        "forward --listen=203.0.113.1:80 --to=10.81.0.1:8443 --deny-client=203.0.113.9 \
         --log-format=json -v",
    );
    for _ in 0..10 {
        let (connected, forward) = thread::scope(|scope| {
            let connecting = scope.spawn(|| connect_from_the_start(&lab.client));
            let forward = Peername::start(&lab.balancer, &args, &[FRONT_V4]);
            (connecting.join().expect("the connections"), forward)
        });
        wait_until("an outcome of each", || {
            forward.outcomes().len() == connected
        });
    }
}

/// Connects again and again from before the proxy listens, and returns the number of connections that it got.
fn connect_from_the_start(client: &Host) -> usize {
    client.enter(|| {
        let deadline = Instant::now() + WAIT_LIMIT;
        let mut connected = 0;
        while connected < 40 && Instant::now() < deadline {
            match TcpStream::connect_timeout(&FRONT_V4, WAIT_LIMIT) {
                Ok(_) => connected += 1,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => connected += 1,
                Err(_) => {}
            }
        }
        connected
    })
}

/// Waits until the lists have refused `refused` connections, and returns their outcomes.
#[track_caller]
fn wait_outcomes(rig: &ProxyRig, refused: usize) -> Vec<String> {
    wait_for("the outcomes", || {
        let mut outcomes = rig.proxy.outcomes();
        outcomes.retain(|outcome| outcome.starts_with("client_") || outcome.starts_with("tlv_"));
        (outcomes.len() >= refused).then_some(outcomes)
    })
}

#[track_caller]
fn assert_refused(rig: &ProxyRig, client: SocketAddr) {
    let down = rig.connect_and_send(&header_for(client));
    assert_eq!(down.wait_closed().0, End::Reset, "{client}");
    rig.assert_no_backend_connection();
}

/// Sends a header with the connection's own address and port, as health checks of version 1 do.
fn connect_as_health_check(host: &Host) -> Conn {
    let down = Conn::connect(host, LISTEN_V4);
    down.send(&header_bytes::v1(down.local_addr(), LISTEN_V4));
    down
}

#[track_caller]
fn assert_own_connection_is_served(rig: &ProxyRig, host: &Host) {
    let down = connect_as_health_check(host);
    down.send(b"check");
    assert_eq!(rig.backend_v4.accept().recv(5), b"check");
}

#[track_caller]
fn assert_own_connection_is_refused(rig: &ProxyRig, host: &Host) {
    connect_as_health_check(host).wait_reset();
    rig.assert_no_backend_connection();
}

/// An allow list that contains no peer, and a required TLV that no health check has.
const LISTS_THAT_REFUSE_PEERS: [&str; 2] = [
    "--allow-client=203.0.113.0/24",
    "--require-tlv=authority=example.org",
];

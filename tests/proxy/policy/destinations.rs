//! The header names the destination, within bounds: never the proxy itself, never an address that is not
//! listed.

use std::iter;
use std::net::SocketAddr;
use std::time::Duration;

use crate::harness::addr::{LISTEN_V4, addr, fresh_client_like, fresh_client_v4, v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::header_bytes::{LOCAL, STREAM_V4, raw, tlv, v1, v2};
use crate::harness::lab::{
    Host, Lab, assert_contains, assert_succeeds, stderr_text, wait_for, wait_until,
};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::proxy::ProxyRig;

#[test]
fn client_reaches_the_destination_in_its_header() {
    let rig = ProxyRig::new(&words(
        "--dynamic-destination --allow-destination=127.0.0.1:9100-9199 \
         --allow-destination=[::1]:9101",
    ));
    let listed = ["127.0.0.1:9100", "127.0.0.1:9199", "[::1]:9101"].map(addr);
    for destination in listed {
        let backend = Backend::listen(&rig.lab.server, destination);
        let client = fresh_client_like(destination);
        for header in [v1(client, destination), v2(client, destination, &[])] {
            let down = rig.connect_and_send(&header);
            let up = backend.accept_from(client);
            up.assert_reaches(&down, b"back");
            down.reset();
            up.wait_closed();
        }
    }
    rig.assert_no_backend_connection();
}

/// Health checks carry neither a client nor a destination.
#[test]
fn header_without_destination_goes_to_the_fixed_target() {
    let rig = ProxyRig::new(&words(
        "--dynamic-destination --allow-destination=127.0.0.1:9100 --mark=7",
    ));
    rig.lab
        .server
        .add_filter("output", "tcp dport { 9000, 9100 } meta mark != 7 reject");
    for header in [raw(LOCAL, STREAM_V4, &[]), b"PROXY UNKNOWN\r\n".to_vec()] {
        let _down = rig.connect_and_send(&header);
        assert_eq!(
            rig.backend_v4.accept().peer_addr().ip().to_string(),
            "127.0.0.1"
        );
    }
    let listed = Backend::listen(&rig.lab.server, addr("127.0.0.1:9100"));
    let _down = rig.connect_and_send(&v1(fresh_client_v4(), addr("127.0.0.1:9100")));
    listed.accept();
}

/// Special addresses are refused, although the list contains every address.
#[test]
fn special_destinations_are_refused() {
    let rig = ProxyRig::new(&words(
        "--dynamic-destination --allow-destination=0.0.0.0/0 --allow-destination=::/0",
    ));
    let table = [
        ("127.0.0.1:9000", "destination_loopback"),
        ("[::1]:9000", "destination_loopback"),
        ("0.0.0.0:9000", "destination_unspecified"),
        ("[::]:9000", "destination_unspecified"),
        ("224.0.0.1:9000", "destination_multicast"),
        ("[ff02::1]:9000", "destination_multicast"),
        ("169.254.7.7:9000", "destination_link_local"),
        ("[fe80::1]:9000", "destination_link_local"),
        ("169.254.169.254:80", "destination_metadata"),
        ("[fd00:ec2::254]:80", "destination_metadata"),
        ("10.81.0.255:9000", "destination_broadcast"),
        ("[64:ff9b::7f00:1]:9000", "destination_embedded"),
        ("10.81.0.1:0", "destination_port_0"),
    ];
    for (destination, _) in table {
        let destination = addr(destination);
        assert_refused(&rig, &v2(fresh_client_like(destination), destination, &[]));
    }
    let reasons = table.map(|(_, reason)| reason);
    wait_until("each has its reason", || rig.proxy.outcomes() == reasons);
    rig.assert_no_backend_connection();
}

#[test]
fn unlisted_destination_is_refused() {
    let rig = ProxyRig::new(&[
        "--dynamic-destination",
        "--allow-destination=127.0.0.1:9100",
    ]);
    assert_refused(&rig, &v1(fresh_client_v4(), addr("10.81.0.2:80")));
    assert_refused(&rig, &v1(fresh_client_v4(), addr("127.0.0.1:9000")));
    wait_until("two reasons", || {
        rig.proxy.outcomes() == ["destination_not_listed", "destination_loopback"]
    });
    rig.proxy
        .wait_logged("the header's destination, 10.81.0.2:80, is not on the list");
}

/// The proxy's listener is refused as a destination by any address of this host, listed or not. go-mmproxy loops
/// through itself forty times for forty headers in one connection.
#[test]
fn destination_is_never_the_proxy() {
    let rig = ProxyRig::new(&words(
        "--dynamic-destination --allow-destination=0.0.0.0/0 \
         --allow-destination=127.0.0.1:1-65535 --allow-destination=[::1]:1-65535",
    ));
    let own_endpoints = [
        "10.81.0.1:8443",
        "127.0.0.1:8443",
        "127.3.2.1:8443",
        "[::1]:8443",
    ];
    for endpoint in own_endpoints.map(addr) {
        assert_refused(&rig, &v2(fresh_client_like(endpoint), endpoint, &[]));
    }
    // This claimed source is in the trusted network, so a connection from it to this host could claim any client.
    let trusted = v4([10, 81, 0, 77], 40_001);
    assert_refused(&rig, &v1(trusted, addr("127.0.0.1:9000")));
    wait_until("five reasons", || {
        let mut expected = vec!["destination_own_listener"; 4];
        expected.push("destination_trusted_source");
        rig.proxy.outcomes() == expected
    });
    rig.assert_no_backend_connection();
}

/// Routes may give this host addresses that no interface has (AnyIP).
#[test]
fn destination_by_a_local_route_is_never_the_proxy() {
    let rig = ProxyRig::new(&["--dynamic-destination", "--allow-destination=0.0.0.0/0"]);
    let server = &rig.lab.server;
    server.run(
        "ip",
        &["route", "add", "local", "100.64.7.0/24", "dev", "lo"],
    );
    // The kernel's notification of the route takes a moment.
    wait_until("the route is known", || {
        let _down = rig.connect_and_send(&v1(fresh_client_v4(), addr("100.64.7.7:8443")));
        let outcomes = rig.proxy.outcomes();
        let last = outcomes.last().map(String::as_str);
        last == Some("destination_own_listener")
    });
    let trusted = v4([10, 81, 0, 77], 40_001);
    assert_refused(&rig, &v1(trusted, addr("100.64.7.7:9000")));
    // Earlier connections may be logged after it.
    wait_until("the reason", || {
        let outcomes = rig.proxy.outcomes();
        let mut reasons = outcomes.iter().map(String::as_str);
        reasons.any(|reason| reason == "destination_trusted_source")
    });
}

/// A balancer that sends connections back to this proxy must not be on the list. If it is, the second pass needs the same
/// 4-tuple as the first, and is refused. `--source-port=any` does not apply to destinations from headers, because with another
/// port the second pass would not need the same 4-tuple.
#[test]
fn loop_through_a_balancer_ends() {
    for options in [&[][..], &["--source-port=any"]] {
        let lab = Lab::without_routes();
        let front = addr("10.81.0.1:80");
        assert_succeeds(&Peername::run(
            &lab.server,
            &["routes", "add", "--target-v4=10.81.0.1:80"],
        ));
        let args =
            words("forward --listen=10.81.0.1:80 --to=127.0.0.1:8443 --source=198.51.100.7:40001");
        let _balancer = Peername::start(&lab.server, &args, &[front]);
        let args = words(
            "proxy --target=127.0.0.1:443 --listen=127.0.0.1:8443 --trust=127.0.0.1 \
             --dynamic-destination --allow-destination=10.81.0.1:80 --log-format=json -v",
        );
        let args = [&args[..], options].concat();
        let proxy = Peername::start(&lab.server, &args, &[addr("127.0.0.1:8443")]);
        // The client is on this host, because the routing rule keeps the frontend from answering other hosts.
        let client = Conn::connect(&lab.server, front);
        client.send(b"loop");
        let _ = client.wait_closed();
        let outcomes = wait_for("the end of the loop", || {
            let outcomes = proxy.outcomes();
            outcomes
                .contains(&"port_taken".to_owned())
                .then_some(outcomes)
        });
        assert!(outcomes.len() <= 2, "{outcomes:?}");
    }
}

/// Proxies that send a header on count their hops in it.
#[test]
fn header_with_too_many_hops_is_refused() {
    let (rig, destination, backend) = forwarding_headers();
    let client = fresh_client_v4();
    let _down = rig.connect_and_send(&v2(client, destination, &tlv(0x02, b"a.example")));
    let expected = v2(
        client,
        destination,
        &[tlv(0x02, b"a.example"), hops(1)].concat(),
    );
    assert_eq!(backend.accept().recv(expected.len()), expected);
    let client = fresh_client_v4();
    let _down = rig.connect_and_send(&v2(client, destination, &hops(3)));
    let expected = v2(client, destination, &hops(4));
    assert_eq!(backend.accept().recv(expected.len()), expected);
    assert_refused(&rig, &v2(fresh_client_v4(), destination, &hops(4)));
    backend.assert_no_connection();
}

/// A header with the most TLVs that are accepted goes on with the hop count added, and the next proxy accepts
/// it.
#[test]
fn hop_count_fits_beside_the_most_tlvs() {
    let (rig, destination, backend) = forwarding_headers();
    let fields: Vec<u8> = (0..64).flat_map(|_| tlv(0xea, b"x")).collect();
    for (received, sent) in [(vec![], hops(1)), (hops(1), hops(2))] {
        let client = fresh_client_v4();
        let tlvs = [&fields[..], &received].concat();
        let _down = rig.connect_and_send(&v2(client, destination, &tlvs));
        let expected = v2(client, destination, &[&fields[..], &sent].concat());
        assert_eq!(backend.accept().recv(expected.len()), expected);
    }
    let one_more = [&fields[..], &tlv(0xea, b"x"), &hops(1)].concat();
    assert_refused(&rig, &v2(fresh_client_v4(), destination, &one_more));
}

/// With the TLV of the hop count, the header's length would exceed its 16-bit field. If the header were left out instead, the
/// backend would read one that the client has forged.
#[test]
fn header_without_room_for_the_hop_count_is_refused() {
    let rig = ProxyRig::new(&words(
        "--dynamic-destination --allow-destination=127.0.0.1:9100 --send-proxy=v2 \
         --max-header=65551",
    ));
    let destination = addr("127.0.0.1:9100");
    let backend = Backend::listen(&rig.lab.server, destination);
    // 65,530 bytes: the addresses, the type and length of the TLV, and its value.
    let value = [0; 65_530 - 12 - 3];
    let header = v2(fresh_client_v4(), destination, &tlv(0xea, &value));
    let forged = b"PROXY TCP4 6.6.6.6 7.7.7.7 1 2\r\n";
    let down = rig.connect_and_send(&[&header, &forged[..]].concat());
    down.wait_reset();
    wait_until("the reason", || {
        rig.proxy.outcomes() == ["header_unwritable"]
    });
    backend.assert_no_connection();
}

/// Replies from an address of this host that is not loopback need a rule of their own. The proxy probes their path when the
/// first client comes, and again until it works.
#[test]
fn missing_rules_are_noticed_for_each_destination() {
    let rig = ProxyRig::new(&[
        "--dynamic-destination",
        "--allow-destination=10.81.0.1:9100",
    ]);
    let destination = addr("10.81.0.1:9100");
    let backend = Backend::listen(&rig.lab.server, destination);
    wait_until("a client is refused", || {
        let _down = rig.connect_and_send(&v1(fresh_client_v4(), destination));
        rig.proxy.outcomes().contains(&"reply_path".to_owned())
    });
    rig.proxy
        .wait_logged("peername routes add --target 10.81.0.1:9100");
    let args = ["routes", "add", "--target-v4=10.81.0.1:9100"];
    assert_succeeds(&Peername::run(&rig.lab.server, &args));
    wait_until("a client is served", || {
        let client = fresh_client_v4();
        let _down = rig.connect_and_send(&v1(client, destination));
        // A connection from before the probe may be accepted first, because its reply now comes back, too.
        let mut accepted = iter::from_fn(|| backend.accept_within(Duration::from_millis(100)));
        accepted.any(|up| up.peer_addr() == client)
    });
}

#[test]
fn proxy_without_a_destination_list_does_not_start() {
    let host = Host::new();
    let usage_error = |args: &[&str]| {
        let args = [&["proxy", "--target=127.0.0.1:1", "--trust=loopback"], args].concat();
        let output = Peername::run(&host, &args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        stderr_text(&output)
    };
    let error = usage_error(&["--dynamic-destination"]);
    assert_contains(&error, &["--allow-destination 127.0.0.1:8000-8999"]);
    let error = usage_error(&["--allow-destination=10.0.0.0/8"]);
    assert_contains(&error, &["--dynamic-destination"]);
    let error = usage_error(&["--dynamic-destination", "--allow-destination=127.0.0.1"]);
    assert_contains(&error, &["name the ports"]);
    let error = usage_error(&["--dynamic-destination", "--allow-destination=everything"]);
    assert_contains(&error, &["[2001:db8::]/32:443"]);
}

/// A proxy that sends headers on, the one destination that it allows, and the backend there.
fn forwarding_headers() -> (ProxyRig, SocketAddr, Backend) {
    let rig = ProxyRig::new(&words(
        "--dynamic-destination --allow-destination=127.0.0.1:9100 --send-proxy=v2",
    ));
    let destination = addr("127.0.0.1:9100");
    let backend = Backend::listen(&rig.lab.server, destination);
    (rig, destination, backend)
}

/// The TLV in which proxies count hops.
fn hops(count: u8) -> Vec<u8> {
    tlv(0xf0, &[b"peername-hops", &[count][..]].concat())
}

#[track_caller]
fn assert_refused(rig: &ProxyRig, header: &[u8]) {
    let before = rig.proxy.outcomes().len();
    let down = Conn::connect_and_send(&rig.lab.balancer, LISTEN_V4, header);
    down.wait_reset();
    // Another thread writes the log; the next refusal must come after this line.
    wait_until("the refusal is logged", || {
        rig.proxy.outcomes().len() > before
    });
}

//! PROXY headers, valid and invalid, in every segmentation that TCP may deliver.
//!
//! An invalid header ends its own connection, at once and before anything reaches a backend; the proxy goes
//! on. A valid one is complete as soon as its last byte has arrived, however it was segmented.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::harness::addr::{
    FRONT_V4, FRONT_V6, LISTEN_V4, TARGET_V4, fresh_client_v4, fresh_client_v6, v4,
};
use crate::harness::backend::Backend;
use crate::harness::conn::{Conn, End};
use crate::harness::header_bytes::{self, DGRAM_V4, NOOP, PROXY, addresses, raw, tlv, v1, v2};
use crate::harness::lab::{Lab, assert_within, wait_until};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::proxy::{ProxyRig, front_of, header_for};

mod invalid;

use invalid::InvalidHeader;

/// A header and the first payload in one segment, as HAProxy sends them.
#[test]
fn header_and_payload_in_one_segment_are_relayed() {
    let rig = ProxyRig::new(&[]);
    for fresh in [fresh_client_v4, fresh_client_v6] {
        for make in [|c| v1(c, front_of(c)), |c| v2(c, front_of(c), &[])] {
            let client = fresh();
            let down = rig.connect_and_send(&[&make(client), &b"payload"[..]].concat());
            assert_eq!(rig.accept_client(client).recv(7), b"payload");
            drop(down);
        }
    }
}

/// A client that sends all it has at once, and then waits for the answer.
#[test]
fn header_payload_and_fin_in_one_flight_are_relayed() {
    let rig = ProxyRig::new(&[]);
    for _ in 0..20 {
        let client = fresh_client_v4();
        let down = rig.connect_and_send(&[&v2(client, FRONT_V4, &[]), &b"question"[..]].concat());
        down.shutdown_write();
        let up = rig.accept_client(client);
        assert_eq!(up.recv_to_end(), (b"question".to_vec(), End::Fin));
        up.send(b"answer");
        drop(up);
        assert_eq!(down.recv_to_end(), (b"answer".to_vec(), End::Fin));
    }
}

/// Other proxies read the header in one call, and fail when it comes in two segments.
#[test]
fn header_may_be_split_at_every_byte() {
    let rig = ProxyRig::new(&[]);
    for make in [
        |c| v1(c, FRONT_V4),
        |c| v2(c, FRONT_V4, &tlv(NOOP, b"12345")),
    ] {
        for cut in 1..make(fresh_client_v4()).len() {
            let client = fresh_client_v4();
            let header = make(client);
            let (first, rest) = header.split_at(cut);
            let down = rig.connect_and_send(first);
            sleep(SEGMENT_PAUSE);
            down.send(&[rest, b"payload"].concat());
            assert_eq!(
                rig.accept_client(client).recv(7),
                b"payload",
                "cut after byte {cut}"
            );
        }
    }
}

#[test]
fn header_may_come_byte_by_byte() {
    let rig = ProxyRig::new(&[]);
    for make in [|c| v1(c, FRONT_V6), |c| v2(c, FRONT_V6, &[])] {
        let client = fresh_client_v6();
        let header = make(client);
        let down = rig.connect_and_send(&[]);
        for byte in [&header, &b"payload"[..]].concat() {
            down.send(&[byte]);
            sleep(SEGMENT_PAUSE);
        }
        assert_eq!(rig.accept_client(client).recv(7), b"payload");
    }
}

/// By default a header may have 4096 bytes in all.
#[test]
fn header_of_4096_bytes_is_accepted_by_default() {
    let rig = ProxyRig::new(&[]);
    let client = fresh_client_v4();
    let down = rig.connect_and_send(&[&padded(client, 4096), &b"payload"[..]].concat());
    assert_eq!(rig.accept_client(client).recv(7), b"payload");
    drop(down);
    // The length of a header is in its first 16 bytes, so a longer one is refused before the rest has come.
    assert_within(3, AT_ONCE, || {
        rig.connect_and_send(&padded(fresh_client_v4(), 4097)[..16])
            .wait_closed()
            .1
    });
    rig.assert_no_backend_connection();
}

/// 65551 bytes are the largest header that version 2 can express.
#[test]
fn largest_header_of_version_2_is_accepted_on_request() {
    let rig = ProxyRig::new(&["--max-header=65551"]);
    let client = fresh_client_v4();
    let _down = rig.connect_and_send(&[&padded(client, 65551), &b"payload"[..]].concat());
    assert_eq!(rig.accept_client(client).recv(7), b"payload");
}

/// No balancer sends more than a handful of TLVs: 64 are accepted, 65 are not, whatever length the header may
/// have.
#[test]
fn header_with_65_tlvs_is_refused() {
    let rig = ProxyRig::new(&["--max-header=65551"]);
    let header_with = |client, count| v2(client, FRONT_V4, &tlv(NOOP, b"").repeat(count));
    let client = fresh_client_v4();
    let _down = rig.connect_and_send(&[&header_with(client, 64), &b"payload"[..]].concat());
    assert_eq!(rig.accept_client(client).recv(7), b"payload");
    for count in [65, 21_000] {
        rig.connect_and_send(&header_with(fresh_client_v4(), count))
            .wait_closed();
        rig.assert_no_backend_connection();
    }
    wait_until("both are in the log", || {
        let mut outcomes = rig.proxy.outcomes();
        outcomes.retain(|outcome| outcome == "too_many_tlvs");
        outcomes.len() == 2
    });
}

/// The header timeout is measured from accept: bytes that drip in do not extend it.
#[test]
fn header_timeout_is_absolute() {
    let rig = ProxyRig::new(&["--header-timeout=400ms"]);
    assert_within(3, Duration::from_millis(900), || {
        let start = Instant::now();
        let (silent, dripping) = (rig.connect_and_send(&[]), rig.connect_and_send(&[]));
        for byte in padded(fresh_client_v4(), 64).chunks(1).take(7) {
            dripping.send_if_open(byte);
            sleep(Duration::from_millis(50));
        }
        for conn in [silent, dripping] {
            conn.wait_closed();
            let elapsed = start.elapsed();
            assert!(elapsed >= Duration::from_millis(400), "after {elapsed:?}");
        }
        start.elapsed()
    });
    rig.assert_no_backend_connection();
}

/// The timer ends with the header: go-proxyproto once applied it to the payload, too.
#[test]
fn header_timeout_ends_with_the_header() {
    let rig = ProxyRig::new(&["--header-timeout=1500ms"]);
    let client = fresh_client_v4();
    // In two parts: a header that is complete at the first read starts no timer.
    let header = header_for(client);
    let (first, rest) = header.split_at(16);
    let down = rig.connect_and_send(first);
    sleep(SEGMENT_PAUSE);
    down.send(rest);
    let up = rig.accept_client(client);
    down.assert_stays_open(Duration::from_secs(2));
    down.assert_reaches(&up, b"late");
}

#[test]
fn truncated_header_with_fin_is_refused() {
    let mut rig = ProxyRig::new(&[]);
    for header in [
        v1(fresh_client_v4(), FRONT_V4),
        v2(fresh_client_v4(), FRONT_V4, &[]),
    ] {
        for cut in [0, 1, 5, 13, header.len() - 1] {
            assert_within(3, AT_ONCE, || {
                let down = rig.connect_and_send(&header[..cut]);
                down.shutdown_write();
                down.wait_closed().1
            });
        }
    }
    rig.assert_no_backend_connection();
    rig.assert_serves(fresh_client_v4());
}

/// Bytes that are no header are recognised early, often at the first byte, and end the connection there.
#[test]
fn invalid_headers_are_refused_at_once() {
    let mut rig = ProxyRig::new(&[]);
    let mut sent = 0;
    for InvalidHeader { name, bytes } in invalid::headers() {
        println!("{name}");
        assert_within(3, AT_ONCE, || {
            sent += 1;
            rig.connect_and_send(&bytes).wait_closed().1
        });
        rig.assert_no_backend_connection();
        assert!(rig.proxy.is_alive(), "{name} ended the proxy");
    }
    wait_until("each is in the log", || rig.proxy.outcomes().len() == sent);
    rig.assert_serves(fresh_client_v4());
}

/// LOCAL and UNKNOWN carry no client: the backend sees the proxy itself, whatever the address block contains.
#[test]
fn header_without_a_client_makes_the_proxy_the_client() {
    let rig = ProxyRig::new(&[]);
    for (name, header) in header_bytes::without_client() {
        let down = rig.connect_and_send(&[&header, &b"check"[..]].concat());
        let up = rig.backend_v4.accept();
        assert_eq!(up.peer_addr().ip().to_string(), "127.0.0.1", "{name}");
        assert_eq!(up.recv(5), b"check", "{name}");
        up.assert_reaches(&down, b"fine");
    }
}

/// HAProxy ends its checks (`check-send-proxy`) with a reset, which is logged without a fault. A reset after payload is one.
#[test]
fn reset_after_a_header_without_a_client_is_a_health_check() {
    let rig = ProxyRig::new(&[]);
    for (sent, outcome, fault) in [("", "health_check", "none"), ("x", "reset", "downstream")] {
        let down = rig.connect_and_send(&header_bytes::nlb_health_check());
        let up = rig.backend_v4.accept();
        down.send(sent.as_bytes());
        assert_eq!(up.recv(sent.len()), sent.as_bytes());
        down.reset();
        assert_eq!(up.wait_closed().0, End::Reset, "{outcome}");
        rig.proxy.wait_logged(&format!(
            "\"outcome\":\"{outcome}\",\"ended_by\":\"downstream\",\"fault\":\"{fault}\""
        ));
    }
}

/// The header of a relayed connection names no IP endpoint, for example AF_UNSPEC or AF_UNIX. If the connection were served
/// with the proxy's own address, it would pass every list of clients.
#[test]
fn header_without_an_address_is_refused() {
    let rig = ProxyRig::new(&[]);
    for (name, header) in header_bytes::without_address() {
        let down = rig.connect_and_send(&header);
        assert_eq!(down.wait_closed().0, End::Reset, "{name}");
        rig.assert_no_backend_connection();
        rig.proxy.wait_outcome("header_without_address");
    }
}

#[test]
fn header_without_a_client_is_refused_on_request() {
    let rig = ProxyRig::new(&["--without-client=refuse"]);
    for (name, header) in header_bytes::without_client() {
        let down = rig.connect_and_send(&header);
        assert_eq!(down.wait_closed().0, End::Reset, "{name}");
        rig.assert_no_backend_connection();
        rig.proxy.wait_outcome("header_without_client");
    }
    rig.connect_client(fresh_client_v4());
}

/// The form of an address shows its family, whatever the keyword is, and the client's family selects the backend.
#[test]
fn unambiguous_deviations_are_served() {
    let rig = ProxyRig::new(&[]);
    for Deviation { client, line, .. } in deviations() {
        let down = rig.connect_and_send(&[line.as_bytes(), b"payload"].concat());
        assert_eq!(rig.accept_client(client).recv(7), b"payload", "{line}");
        drop(down);
    }
}

#[test]
fn strict_header_refuses_deviations_and_logs_what_differs() {
    let rig = ProxyRig::new(&["--strict-header"]);
    for Deviation { line, error, .. } in deviations() {
        let down = rig.connect_and_send(line.as_bytes());
        assert_eq!(down.wait_closed().0, End::Reset, "{line}");
        rig.proxy.wait_logged(error);
    }
    let port_zero = rig.connect_and_send(&v1(v4([198, 51, 100, 7], 0), FRONT_V4));
    port_zero.wait_reset();
    rig.assert_no_backend_connection();
    rig.connect_client(fresh_client_v4());
}

/// Source port 0 means that the balancer does not know the client's port: the proxy connects from any free port.
#[test]
fn source_port_zero_is_any_port() {
    let rig = ProxyRig::new(&[]);
    let claimed = v4([198, 51, 100, 7], 0);
    for header in [v1(claimed, FRONT_V4), v2(claimed, FRONT_V4, &[])] {
        let _down = rig.connect_and_send(&header);
        let client = rig.backend_v4.accept().peer_addr();
        assert_eq!(client.ip(), claimed.ip());
        assert_ne!(client.port(), 0);
    }
}

/// A line that deviates from the specification.
struct Deviation {
    client: SocketAddr,
    line: String,
    /// What the log reports with `--strict-header`.
    error: &'static str,
}

fn deviations() -> [Deviation; 4] {
    [
        // nginx with realip behind an IPv4 balancer.
        (
            fresh_client_v6(),
            "TCP6",
            "10.0.0.2",
            "2222\r\n",
            "source is IPv6, destination IPv4 in a TCP6 header",
        ),
        // curl and Xray.
        (
            fresh_client_v6(),
            "TCP4",
            "2001:db8::1",
            "443\r\n",
            "source is IPv6, destination IPv6 in a TCP4 header",
        ),
        (
            fresh_client_v4(),
            "TCP6",
            "2001:db8::1",
            "443\r\n",
            "source is IPv4, destination IPv6 in a TCP6 header",
        ),
        (
            fresh_client_v4(),
            "TCP4",
            "203.0.113.1",
            "443 \r\n",
            "a space before the CRLF",
        ),
    ]
    .map(|(client, protocol, destination, end, error)| {
        let (ip, port) = (client.ip(), client.port());
        Deviation {
            client,
            line: format!("PROXY {protocol} {ip} {destination} {port} {end}"),
            error,
        }
    })
}

/// A header for DGRAM does not describe a TCP connection.
#[test]
fn header_for_udp_is_refused_over_tcp() {
    let mut rig = ProxyRig::new(&[]);
    rig.connect_and_send(&raw(
        PROXY,
        DGRAM_V4,
        &addresses(fresh_client_v4(), FRONT_V4),
    ))
    .wait_closed();
    rig.assert_no_backend_connection();
    rig.assert_serves(fresh_client_v4());
}

/// Only the first header is parsed. Bytes after it that look like a header are payload.
#[test]
fn second_header_is_payload() {
    let rig = ProxyRig::new(&[]);
    let second = v1(v4([192, 0, 2, 66], 666), FRONT_V4);
    let client = fresh_client_v4();
    let _down = rig.connect_and_send(&[v2(client, FRONT_V4, &[]), second.clone()].concat());
    assert_eq!(rig.accept_client(client).recv(second.len()), second);
}

/// On a host without IPv6, a header with an IPv6 client is refused and the proxy goes on (one balancer has crashed there).
#[test]
fn proxy_serves_ipv4_on_a_host_without_ipv6() {
    let lab = Lab::new();
    lab.server.sysctl("net.ipv6.conf.all.disable_ipv6", "1");
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let args = words("proxy --listen=10.81.0.1:8443 --target-v4=127.0.0.1:9000 --trust=10.81.0.2");
    let mut proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
    let open = |header: Vec<u8>| Conn::connect_and_send(&lab.balancer, LISTEN_V4, &header);
    open(v2(fresh_client_v6(), FRONT_V6, &[])).wait_closed();
    backend.assert_no_connection();
    assert!(proxy.is_alive());
    let client = fresh_client_v4();
    let _down = open(v2(client, FRONT_V4, &[]));
    assert_eq!(backend.accept().peer_addr(), client);
}

/// A valid header of `len` bytes, padded with a NOOP TLV.
fn padded(client: SocketAddr, len: usize) -> Vec<u8> {
    let bare = v2(client, FRONT_V4, &tlv(NOOP, &[])).len();
    v2(client, FRONT_V4, &tlv(NOOP, &vec![0; len - bare]))
}

/// Long enough for the previous bytes to arrive in a segment of their own, and to be read.
const SEGMENT_PAUSE: Duration = Duration::from_millis(2);

/// Well below the header timeout of 5 s, after which a proxy that overlooks the error would close.
const AT_ONCE: Duration = Duration::from_secs(1);

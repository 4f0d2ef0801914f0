//! Offload to the kernel: steady sessions behave as in user space.

mod checksums;
mod stack;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::dialects::header_in_dialect;
use crate::harness::addr::{
    BALANCER_V4, BALANCER_V6, LISTEN_V4, TARGET_V4, TARGET_V6, fresh_client_v4, fresh_client_v6, v4,
};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::{Host, Lab, Process, Scratch, wait_for, wait_until};
use crate::harness::peername::{BINARY, Peername, words};
use crate::harness::rig::proxy::front_of;
use crate::harness::rig::udp::{UdpRig, datagram_header_for};

const KERNEL: &str = "--data-path=kernel";

/// Both dialects and families, with balancers on another host and on this one, backends on loopback and on another address of
/// the host, payloads from none to what one packet holds, and with and without checksum offload to devices.
#[test]
fn offload_serves_every_dialect_family_and_backend() {
    for offloading in ["on", "off"] {
        for (dialect, target_v4, target_v6) in [
            ("each", "127.0.0.1:9000", "[::1]:9000"),
            ("spp", "127.0.0.1:9000", "[::1]:9000"),
            ("each", "10.81.0.1:9001", "[fd81::1]:9001"),
            ("spp", "10.81.0.1:9001", "[fd81::1]:9001"),
        ] {
            let lab = Lab::new();
            lab.server
                .ip("rule add from 10.81.0.1 iif lo ipproto udp sport 9001 table 123");
            lab.server
                .ip6("rule add from fd81::1 iif lo ipproto udp sport 9001 table 123");
            for (host, device) in [(&lab.balancer, "lan"), (&lab.server, "eth0")] {
                host.run("ethtool", &["-K", device, "tx", offloading]);
            }
            let targets = [target_v4, target_v6].map(|addr| addr.parse().expect("an address"));
            let backends = targets.map(|target| DatagramSocket::bind(&lab.server, target));
            let mut proxy = Peername::start_listening(
                &lab.server,
                &words(&format!(
                    "proxy --protocol=udp --listen=10.81.0.1:8443 --listen=[fd81::1]:8443 \
                     --listen=127.0.0.1:8443 --listen=[::1]:8443 --target-v4={target_v4} \
                     --target-v6={target_v6} --trust=private --log-format=json \
                     --udp-header={dialect} {KERNEL}"
                )),
            );
            for (host, from, to) in [
                (&lab.balancer, BALANCER_V4, "10.81.0.1:8443"),
                (&lab.balancer, BALANCER_V6, "[fd81::1]:8443"),
                (&lab.server, TARGET_V4.ip(), "127.0.0.1:8443"),
                (&lab.server, TARGET_V6.ip(), "[::1]:8443"),
            ] {
                let balancer = DatagramSocket::bind(host, SocketAddr::new(from, 0));
                let to = to.parse().expect("an address");
                let (client, backend) = if from.is_ipv4() {
                    (fresh_client_v4(), &backends[0])
                } else {
                    (fresh_client_v6(), &backends[1])
                };
                converse(&balancer, to, dialect, client, backend);
            }
            let totals = proxy.stop();
            assert_eq!(totals["datagrams_dropped"], "", "{totals}");
            // Requests and replies are counted together, so more than half of all.
            let requests = totals["datagrams_to_upstream"].as_u64().expect("a number");
            assert!(
                in_kernel(&totals) > requests,
                "{dialect} {target_v4}: {totals}"
            );
            // To verify that a session keeps its client's address, the proxy sends packets with a wrong checksum, at least one
            // for each of four sessions. No other datagram has a wrong checksum.
            assert!(checksum_errors(&lab.server) >= 4);
            assert_eq!(checksum_errors(&lab.balancer), 0);
        }
    }
}

/// Many requests of one client, each with its reply.
#[track_caller]
fn converse(
    balancer: &DatagramSocket,
    to: SocketAddr,
    dialect: &str,
    client: SocketAddr,
    backend: &DatagramSocket,
) {
    let header = header_in_dialect(dialect, client);
    let reply_header: &[u8] = if dialect == "spp" { &header } else { &[] };
    for round in 0..40_usize {
        let size = [0, 1, 2, 63, 64, 500, 1201, 1364][round % 8];
        let request: Vec<u8> = (0..size).map(|at| (at + round) as u8).collect();
        let answer: Vec<u8> = request.iter().rev().copied().collect();
        balancer.send(to, &[&header, &request]);
        backend.expect_datagram(&request, client);
        backend.send(client, &[&answer]);
        balancer.expect_datagram(&[reply_header, &answer].concat(), to);
    }
}

/// Each unusual datagram goes through user space. The session's usual datagrams before and after it do not.
#[test]
fn unusual_datagrams_go_through_user_space() {
    let mut rig = UdpRig::new(&[KERNEL]);
    let client = fresh_client_v4();
    let tlvs = header_bytes::tlv(header_bytes::NOOP, &[0; 5]);
    let body = [
        &header_bytes::addresses(client, front_of(client)),
        &tlvs[..],
    ]
    .concat();
    let another = header_bytes::raw(header_bytes::PROXY, header_bytes::DGRAM_V4, &body);
    serve_until_offloaded(&rig, client);
    for (header, request, answer) in [
        // Longer than a packet, in either direction.
        (&datagram_header_for(client), vec![1; 3000], vec![2; 3000]),
        (&datagram_header_for(client), vec![3; 20], vec![4; 65_507]),
        // Another header of the same client, of odd length, repeatedly.
        (&another, vec![5; 100], vec![6; 100]),
        (&another, vec![7; 100], vec![8; 100]),
        (&datagram_header_for(client), vec![], vec![]),
    ] {
        rig.assert_delivered(header, &request, client);
        rig.assert_reply(client, &answer);
        rig.round_trip(client);
    }
    serve_until_offloaded(&rig, client);
    let totals = rig.stop();
    assert!(in_kernel(&totals) > 20, "{totals}");
    assert_eq!(totals["datagrams_dropped"], "", "{totals}");
}

/// A header that differs in a single byte from that of an offloaded session is not carried by the kernel.
#[test]
fn header_that_differs_in_one_byte_is_another_session() {
    let mut rig = UdpRig::new(&[KERNEL]);
    let client = fresh_client_v4();
    serve_until_offloaded(&rig, client);
    let mut local = datagram_header_for(client);
    local[12] = header_bytes::LOCAL;
    rig.send_from_balancer(&[&local, b"of the balancer's own"]);
    let (says, from) = rig.backend_v4.recv();
    assert_eq!(says, b"of the balancer's own");
    assert!(from.ip().is_loopback(), "{from}");
    let mut stream = datagram_header_for(client);
    stream[13] = header_bytes::STREAM_V4;
    rig.send_from_balancer(&[&stream, b"TCP"]);
    rig.backend_v4.assert_silent();
    serve_until_offloaded(&rig, client);
    let totals = rig.stop();
    assert_eq!(
        totals["datagrams_dropped"], "stream_transport=1",
        "{totals}"
    );
    assert!(in_kernel(&totals) > 10, "{totals}");
}

/// The reply goes where the last request came from, even if the request before it was carried by the kernel.
#[test]
fn offload_follows_a_balancer_to_another_port() {
    let mut rig = UdpRig::new(&[KERNEL]);
    let client = fresh_client_v4();
    serve_until_offloaded(&rig, client);
    for _ in 0..3 {
        let other = rig.add_balancer_socket();
        for _ in 0..10 {
            let header = datagram_header_for(client);
            other.round_trip(LISTEN_V4, &header, &rig.backend_v4, client);
        }
        rig.round_trip(client);
    }
    rig.balancer.assert_silent();
    assert!(in_kernel(&rig.stop()) > 20);
}

/// Each of many clients behind one socket of the balancer gets its own reply in each round.
#[test]
fn offload_separates_clients_of_one_balancer_socket() {
    let mut rig = UdpRig::new(&[KERNEL]);
    let clients: Vec<_> = (0..50).map(|_| fresh_client_v4()).collect();
    for round in 0..12_u8 {
        for client in &clients {
            let says = [&client.port().to_be_bytes()[..], &[round]].concat();
            rig.send_from_balancer(&[&datagram_header_for(*client), &says]);
        }
        for _ in &clients {
            let (says, client) = rig.backend_v4.recv();
            assert_eq!(says[..2], client.port().to_be_bytes());
            rig.backend_v4.send(client, &[&says]);
        }
        let mut answered: Vec<_> = clients.iter().map(|_| rig.balancer.recv().0).collect();
        answered.sort();
        answered.dedup();
        assert_eq!(answered.len(), clients.len());
    }
    assert!(in_kernel(&rig.stop()) > 500);
}

/// A reload that withdraws trust applies to offloaded sessions, too. A peer that was never trusted is refused, even with the
/// header that the trusted one sends.
#[test]
fn reload_withdraws_trust_from_offloaded_sessions() {
    let scratch = Scratch::new();
    let trust = format!("--trust=@{}", scratch.write("trusted", "10.81.0.2/32\n"));
    let lab = Lab::new();
    lab.balancer.add_addresses("lan", &["10.81.0.3/24"]);
    let backend = DatagramSocket::bind(&lab.server, TARGET_V4);
    let mut proxy = Peername::start_listening(
        &lab.server,
        &words(&format!(
            "proxy --protocol=udp --listen=10.81.0.1:8443 --target-v4=127.0.0.1:9000 \
             --log-format=json {trust} {KERNEL}"
        )),
    );
    let balancer = DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    let other_balancer = DatagramSocket::bind(&lab.balancer, v4([10, 81, 0, 3], 0));
    let client = fresh_client_v4();
    converse(&balancer, LISTEN_V4, "each", client, &backend);
    other_balancer.send(LISTEN_V4, &[&datagram_header_for(client), b"never trusted"]);
    backend.assert_silent();
    scratch.write("trusted", "10.81.0.3\n");
    proxy.signal(Signal::HUP);
    proxy.wait_logged("\"reloaded\"");
    balancer.send(LISTEN_V4, &[&datagram_header_for(client), b"was trusted"]);
    backend.assert_silent();
    other_balancer.send(LISTEN_V4, &[&datagram_header_for(client), b"is trusted"]);
    let (says, _) = backend.recv();
    assert_eq!(says, b"is trusted");
    let totals = proxy.stop();
    assert_eq!(totals["datagrams_dropped"], "untrusted_peer=2", "{totals}");
    // Those of `converse`, and the last one.
    assert_eq!(totals["datagrams_to_upstream"], 40 + 1, "{totals}");
}

/// A reload evicts all flows. A session that changes too often is no longer offloaded, but these evictions do not count as
/// changes.
#[test]
fn steady_session_is_offloaded_again_after_each_reload() {
    let mut rig = UdpRig::new(&[KERNEL]);
    let client = fresh_client_v4();
    for reloads in 1..=20 {
        serve_until_offloaded(&rig, client);
        rig.proxy.signal(Signal::HUP);
        wait_until("the reload", || {
            rig.proxy.count_logged("\"reloaded\"") == reloads
        });
    }
    serve_until_offloaded(&rig, client);
    for _ in 0..100 {
        rig.round_trip(client);
    }
    let totals = rig.stop();
    assert!(in_kernel(&totals) > 200, "{totals}");
}

/// A session whose datagrams only the kernel sees is not idle until they end; its log line includes the kernel's totals.
#[test]
fn offloaded_sessions_expire_when_idle() {
    let mut rig = UdpRig::new(&[KERNEL, "--close-after=2s", "-v"]);
    let client = fresh_client_v4();
    let begun = Instant::now();
    let mut requests = 0;
    while begun.elapsed() < Duration::from_secs(6) {
        rig.round_trip(client);
        requests += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    let line = rig.proxy.wait_json("that the session has ended", |line| {
        line["message"] == "connection ended"
    });
    let lasted = begun.elapsed();
    assert!(lasted > Duration::from_secs(7), "{lasted:?}");
    assert!(lasted < Duration::from_secs(12), "{lasted:?}");
    assert_eq!(line["datagrams_to_upstream"], requests, "{line}");
    assert_eq!(line["datagrams_to_downstream"], requests, "{line}");
    assert_eq!(line["bytes_to_upstream"], 4 * requests, "{line}");
    let totals = rig.stop();
    assert_eq!(totals["udp_sessions"], 1);
    assert!(in_kernel(&totals) > requests, "{totals}");
}

/// A flood of clients, with replies or without, evicts no session that the kernel serves.
#[test]
fn flood_evicts_no_offloaded_session() {
    let mut rig = UdpRig::new(&[KERNEL, "--max-sessions-per-balancer=40", "--workers=1"]);
    let clients: Vec<_> = (0..10).map(|_| fresh_client_v4()).collect();
    clients
        .iter()
        .for_each(|client| serve_until_offloaded(&rig, *client));
    for _ in 0..5 {
        for _ in 0..100 {
            rig.send_from_balancer(&[&datagram_header_for(fresh_client_v4()), b"flood"]);
        }
        // The whole flood is forwarded.
        (0..100).for_each(|_| assert_eq!(rig.backend_v4.recv().0, b"flood"));
        clients.iter().for_each(|client| rig.round_trip(*client));
    }
    // Fewer answered clients in each round than the table has sessions.
    for _ in 0..5 {
        (0..20).for_each(|_| rig.round_trip(fresh_client_v4()));
        clients.iter().for_each(|client| rig.round_trip(*client));
    }
    let totals = rig.stop();
    assert_eq!(totals["udp_sessions"], 10 + 5 * 100 + 5 * 20, "{totals}");
    assert!(in_kernel(&totals) > 100, "{totals}");
}

/// An evicted session is removed from the kernel, too.
#[test]
fn evicted_session_leaves_the_kernel() {
    let mut rig = UdpRig::new(&[KERNEL, "--max-sessions=1", "--workers=1"]);
    let (first, second) = (fresh_client_v4(), fresh_client_v4());
    serve_until_offloaded(&rig, first);
    serve_until_offloaded(&rig, second);
    serve_until_offloaded(&rig, first);
    let totals = rig.stop();
    assert_eq!(totals["udp_sessions"], 3, "{totals}");
    assert!(in_kernel(&totals) > 10, "{totals}");
}

/// The kernel removes all flows when the process ends, even by SIGKILL. From then on no header is stripped, and nothing
/// reaches the backend.
#[test]
fn no_flow_outlives_the_process() {
    let rig = UdpRig::new(&[KERNEL]);
    let client = fresh_client_v4();
    serve_until_offloaded(&rig, client);
    rig.proxy.signal(Signal::KILL);
    wait_for("the port is free", || {
        let free = rig
            .lab
            .server
            .enter(|| std::net::UdpSocket::bind(LISTEN_V4));
        free.ok()
    });
    let next = DatagramSocket::bind(&rig.lab.server, LISTEN_V4);
    let datagram = [&datagram_header_for(client)[..], b"ping"].concat();
    rig.send_from_balancer(&[&datagram]);
    let balancer = rig.balancer.socket().local_addr().expect("an address");
    next.expect_datagram(&datagram, balancer);
    rig.backend_v4.assert_silent();
}

/// During a drain, user space serves the sessions, so that the proxy knows when the last one is idle.
#[test]
fn drain_waits_for_offloaded_sessions() {
    let mut rig = UdpRig::new(&[KERNEL]);
    let client = fresh_client_v4();
    serve_until_offloaded(&rig, client);
    rig.proxy.signal(Signal::TERM);
    rig.proxy.wait_logged("accepting no more");
    for _ in 0..20 {
        rig.round_trip(client);
        std::thread::sleep(Duration::from_millis(100));
    }
    rig.proxy.wait_success(Duration::from_secs(5));
}

/// `--data-path kernel` fails the start where it is impossible. The error names what is missing, and no setting is changed.
#[test]
fn offload_that_is_impossible_fails_the_start() {
    let lab = Lab::new();
    let with_ipsec = Lab::new();
    with_ipsec.server.ip(
        "xfrm policy add src 10.81.0.0/24 dst 10.81.0.1/32 dir in tmpl proto esp mode transport",
    );
    for (lab, through, args, cause) in [
        (
            &with_ipsec,
            &[][..],
            &["--protocol=udp"][..],
            "IPsec policies",
        ),
        (
            &lab,
            &[],
            &["--protocol=tcp"],
            "--data-path kernel is for UDP",
        ),
        (
            &lab,
            &["setpriv", "--bounding-set=-net_admin,-bpf,-sys_admin", "--"],
            &["--protocol=udp"],
            "CAP_BPF and CAP_NET_ADMIN",
        ),
    ] {
        let line = format!(
            "proxy --listen=10.81.0.1:8443 --target=127.0.0.1:443 --trust=private {KERNEL}"
        );
        let usual = words(&line);
        let args = [&usual[..], args].concat();
        let mut process = Process::start_through(&lab.server, through, BINARY, &args);
        process.wait_logged(cause);
        let status = wait_for("the exit", || process.wait_exit(Duration::from_millis(10)));
        assert!(!status.success());
        let path = "/proc/sys/net/ipv4/conf/lo/route_localnet";
        let setting = lab.server.enter(|| std::fs::read_to_string(path));
        assert_eq!(setting.expect("a setting"), "0\n", "{cause}");
    }
}

/// Serves a client often enough that its session becomes steady and is offloaded.
#[track_caller]
fn serve_until_offloaded(rig: &UdpRig, client: SocketAddr) {
    for _ in 0..8 {
        rig.round_trip(client);
    }
}

fn in_kernel(totals: &Value) -> u64 {
    totals["datagrams_in_kernel"].as_u64().expect("a number")
}

/// Datagrams that a host has dropped for their checksum, of both families.
fn checksum_errors(host: &Host) -> u64 {
    let counters = host.run("nstat", &["-asz", "UdpInCsumErrors", "Udp6InCsumErrors"]);
    counters
        .lines()
        .filter(|line| line.starts_with("Udp"))
        .map(|line| line.split_whitespace().nth(1).expect("a count"))
        .map(|count| count.parse::<u64>().expect("a number"))
        .sum()
}

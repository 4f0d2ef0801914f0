//! Dialects: how each handles a datagram with a header, and one without.

use std::net::SocketAddr;

use crate::harness::addr::{
    BALANCER_V4, BALANCER_V6, LISTEN_V4, TARGET_V4, TARGET_V6, fresh_client_v4, fresh_client_v6,
};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::{Host, Lab};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::proxy::front_of;
use crate::harness::rig::udp::{UdpRig, datagram_header_for};

/// Every dialect, for clients of both families behind balancers of both, at listeners on an address of the
/// host, on loopback and on all addresses: the backend sees the client, and the reply comes from the address
/// that the request was sent to.
#[test]
fn every_dialect_serves_every_family_and_listener() {
    for dialect in ["each", "first", "spp"] {
        let lab = Lab::new();
        let backends = [TARGET_V4, TARGET_V6].map(|addr| DatagramSocket::bind(&lab.server, addr));
        // The last two are addresses that only a listener on all addresses has.
        lab.server
            .add_addresses("eth0", &["10.81.0.77/24", "fd81::77/64"]);
        let listeners = [
            "10.81.0.1:8443",
            "[fd81::1]:8443",
            "127.0.0.1:8443",
            "[::1]:8443",
            "0.0.0.0:8444",
            "[::]:8445",
        ];
        let proxy = start_proxy(&lab, dialect, &listeners);
        for (host, from, to) in [
            (&lab.balancer, BALANCER_V4, "10.81.0.1:8443"),
            (&lab.balancer, BALANCER_V6, "[fd81::1]:8443"),
            (&lab.server, "127.0.0.1".parse().unwrap(), "127.0.0.1:8443"),
            (&lab.server, "::1".parse().unwrap(), "[::1]:8443"),
            (&lab.balancer, BALANCER_V4, "10.81.0.77:8444"),
            (&lab.balancer, BALANCER_V6, "[fd81::77]:8445"),
            (&lab.balancer, BALANCER_V4, "10.81.0.77:8445"),
        ] {
            let from = SocketAddr::new(from, 0);
            converse(host, from, to.parse().unwrap(), dialect, &backends);
        }
        drop(proxy);
    }
}

fn start_proxy(lab: &Lab, dialect: &str, listeners: &[&str]) -> Peername {
    let listen: Vec<String> = listeners
        .iter()
        .map(|listener| format!("--listen={listener}"))
        .collect();
    let line = format!(
        "proxy --protocol=udp --target-v4=127.0.0.1:9000 --target-v6=[::1]:9000 --trust=private \
         --workers=2 --udp-header={dialect}"
    );
    let mut args = words(&line);
    args.extend(listen.iter().map(String::as_str));
    Peername::start_listening(&lab.server, &args)
}

/// Three requests of a client of each family, each with its reply.
fn converse(
    host: &Host,
    from: SocketAddr,
    to: SocketAddr,
    dialect: &str,
    backends: &[DatagramSocket; 2],
) {
    for (client, backend) in [fresh_client_v4(), fresh_client_v6()]
        .into_iter()
        .zip(backends)
    {
        let balancer = DatagramSocket::bind(host, from);
        for round in 0..3_u8 {
            let header = match (dialect, round) {
                ("first", 1..) => vec![],
                _ => header_in_dialect(dialect, client),
            };
            balancer.send(to, &[&header, &[b'?', round]]);
            backend.expect_datagram(&[b'?', round], client);
            backend.send(client, &[&[b'!', round]]);
            let expected: &[u8] = if dialect == "spp" { &header } else { &[] };
            balancer.expect_datagram(&[expected, &[b'!', round]].concat(), to);
        }
    }
}

/// Some senders, such as kdig, put port 0 in the header. The backend sees the client's address and any port, and replies reach
/// the balancer.
#[test]
fn source_port_zero_is_any_port() {
    for dialect in ["each", "first", "spp"] {
        let rig = UdpRig::new(&[&format!("--udp-header={dialect}")]);
        let claimed = SocketAddr::new(fresh_client_v4().ip(), 0);
        let header = header_in_dialect(dialect, claimed);
        let reply_header: &[u8] = if dialect == "spp" { &header } else { &[] };
        // Two clients of one address, which only the balancer's ports tell apart.
        let senders = [rig.add_balancer_socket(), rig.add_balancer_socket()];
        let clients = senders.each_ref().map(|sender| {
            sender.send(LISTEN_V4, &[&header, b"query"]);
            let (bytes, from) = rig.backend_v4.recv();
            assert_eq!((&bytes[..], from.ip()), (&b"query"[..], claimed.ip()));
            assert_ne!(from.port(), 0);
            from
        });
        for (sender, client) in senders.iter().zip(clients) {
            let answer = client.to_string();
            rig.backend_v4.send(client, &[answer.as_bytes()]);
            sender.expect_datagram(&[reply_header, answer.as_bytes()].concat(), LISTEN_V4);
        }
    }
}

/// A relayed datagram without a client's address is always refused; `--without-client=refuse` refuses the balancer's own
/// datagrams, too.
#[test]
fn datagram_without_a_client_is_refused_on_request() {
    for dialect in ["each", "first"] {
        let dialect = format!("--udp-header={dialect}");
        let mut rig = UdpRig::new(&[&dialect, "--without-client=refuse"]);
        let local = header_bytes::raw(header_bytes::LOCAL, header_bytes::UNSPEC, &[]);
        rig.send_from_balancer(&[&local, b"local"]);
        for (_, header) in header_bytes::without_address() {
            rig.send_from_balancer(&[&header, b"relayed"]);
        }
        rig.round_trip(fresh_client_v4());
        rig.backend_v4.assert_silent();
        let drops = rig.stop_and_count_drops();
        assert_eq!(drops.get("header_without_client"), Some(&1), "{drops:?}");
        assert_eq!(drops.get("header_without_address"), Some(&4), "{drops:?}");
    }
}

/// The dialects of PROXY headers do not read the Simple Proxy Protocol; the log names the dialect that does.
#[test]
fn header_of_another_dialect_is_named() {
    for dialect in ["each", "first"] {
        let rig = UdpRig::new(&[&format!("--udp-header={dialect}")]);
        let client = fresh_client_v4();
        rig.send_from_balancer(&[&header_bytes::spp(client, front_of(client)), b"ping"]);
        rig.proxy.wait_logged("use --udp-header spp");
    }
}

/// Without a header there is no client: the datagram is dropped, and counted with the reason.
#[test]
fn dialect_each_drops_datagrams_without_a_header() {
    let mut rig = UdpRig::new(&["--max-header=300"]);
    let client = fresh_client_v4();
    rig.round_trip(client);
    let front = front_of(client);
    let valid = datagram_header_for(client);
    let tcp = header_bytes::v2(client, front, &[]);
    let header_with = |tlvs: &[u8]| {
        let body = [&header_bytes::addresses(client, front), tlvs].concat();
        header_bytes::raw(header_bytes::PROXY, header_bytes::DGRAM_V4, &body)
    };
    let empty = header_bytes::tlv(header_bytes::NOOP, &[]);
    rig.assert_delivered(&header_with(&empty.repeat(64)), b"64", client);
    let large = header_with(&header_bytes::tlv(header_bytes::NOOP, &[0; 300]));
    let many = header_with(&empty.repeat(65));
    let refused: [(&[u8], &str); 7] = [
        (b"ping", "no_header"),
        (b"", "truncated"),
        (&valid[..20], "truncated"),
        (&header_bytes::v1(client, front), "v1_on_datagram"),
        (&tcp, "stream_transport"),
        (&large, "header_too_long"),
        (&many, "too_many_tlvs"),
    ];
    for (bytes, _) in refused {
        rig.send_from_balancer(&[bytes]);
    }
    rig.round_trip(client);
    let dropped = rig.stop_and_count_drops();
    assert_eq!(
        dropped.values().sum::<u64>(),
        refused.len() as u64,
        "{dropped:?}"
    );
    for (_, reason) in refused {
        assert!(dropped.contains_key(reason), "{reason}: {dropped:?}");
    }
    rig.proxy.wait_logged("use --udp-header first");
}

/// The header of `dialect` that a balancer puts before a datagram of this client.
pub(super) fn header_in_dialect(dialect: &str, client: SocketAddr) -> Vec<u8> {
    match dialect {
        "spp" => header_bytes::spp(client, front_of(client)),
        _ => datagram_header_for(client),
    }
}

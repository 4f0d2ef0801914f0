//! A reload replaces a specific listening address with a wider one that overlaps it, and the reverse, in one
//! step.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;

use peername_sys::socket::BindOptions;
use peername_sys::tcp::listener;
use peername_sys::udp;
use rustix::process::Signal;

use crate::harness::addr::{BALANCER_V4, FRONT_V4, LISTEN_V4, TARGET_V4, fresh_client_v4};
use crate::harness::backend::Backend;
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::{
    Lab, Process, Scratch, WAIT_LIMIT, assert_contains, stderr_text, wait_until,
};
use crate::harness::peername::{BINARY, Peername};
use crate::harness::rig::proxy::connect_fresh_client;

/// The addresses after each reload. IPv4 is accepted each time: a `[::]` that was opened alone or beside `0.0.0.0` accepts it,
/// too.
const OVERLAPPING: [&[&str]; 8] = [
    &["0.0.0.0:8443"],
    &["10.81.0.1:8443"],
    &["[::]:8443"],
    &["0.0.0.0:8443"],
    &["0.0.0.0:8443", "[::]:8443"],
    &["[::]:8443"],
    &["10.81.0.1:8443", "[::]:8443"],
    &["[::]:8443"],
];

/// Starts a proxy at an address of IPv4; returns it, and a function that writes its configuration file with other addresses.
fn start(
    lab: &Lab,
    scratch: &Scratch,
    workers: &str,
    protocol: &str,
) -> (Peername, impl Fn(&[&str])) {
    // A table for each address, because over UDP the addresses of a table can't change.
    let table = move |address: &&str| {
        format!(
            "[[listen]]\naddress = {address:?}\nprotocol = \"{protocol}\"\n\
             target-v4 = \"{TARGET_V4}\"\ntrust = [\"any\"]\n"
        )
    };
    let write = move |addresses: &[&str]| {
        let tables: String = addresses.iter().map(table).collect();
        scratch.write("proxy.toml", &tables)
    };
    let config = format!("--config={}", write(&["10.81.0.1:8443"]));
    let args = ["proxy", "--log-format=json", &config, workers];
    let proxy = Peername::start_listening(&lab.server, &args);
    (proxy, move |addresses: &[&str]| drop(write(addresses)))
}

/// Beside a specific IPv4 address, a socket for `[::]` is opened for IPv6 only, which can't be changed later.
#[test]
fn reload_that_leaves_no_listener_for_ipv4_is_refused() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let (proxy, write_addresses) = start(&lab, &scratch, "--workers=1", "tcp");
    let reload = |addresses: &[&str], says: &str| {
        write_addresses(addresses);
        proxy.reload(says);
    };
    reload(&["10.81.0.1:8443", "[::]:8443"], "\"opened\":\"[::]:8443\"");
    let refused = "reload refused, nothing was changed: [::]:8443 was opened for IPv6 only";
    reload(&["[::]:8443"], refused);
    reload(
        &["0.0.0.0:8443", "[::]:8443"],
        "\"opened\":\"0.0.0.0:8443\"",
    );
    reload(&["[::]:8443"], refused);
    let _open = connect_fresh_client(&lab, LISTEN_V4, &backend);
}

/// A socket for IPv6 only that a service manager passed has no IPv4 clients to lose, so a reload is not refused.
#[test]
fn reload_keeps_a_socket_of_ipv6_only() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let script = scratch.write("ipv6_only.py", include_str!("ipv6_only.py"));
    let table = format!(
        "[[listen]]\nlisten = [\"[::]:8443\"]\ntarget = \"{TARGET_V4}\"\ntrust = [\"any\"]\n"
    );
    let config = scratch.write("proxy.toml", &table);
    let args = ["proxy", "--log-format=json", "--config", &config];
    let proxy = Process::start_through(&lab.server, &["/usr/bin/python3", &script], BINARY, &args);
    proxy.wait_logged("\"listening\"");
    proxy.signal(Signal::HUP);
    proxy.wait_logged("\"reloaded\"");
}

#[test]
fn reload_replaces_an_address_with_an_overlapping_one() {
    for workers in ["--workers=1", "--workers=2"] {
        let (lab, scratch) = (Lab::new(), Scratch::new());
        let backend = Backend::listen(&lab.server, TARGET_V4);
        let (proxy, write_addresses) = start(&lab, &scratch, workers, "tcp");
        let open = |to: SocketAddr| connect_fresh_client(&lab, to, &backend);
        let (down, up) = open(LISTEN_V4);
        for (reloads, addresses) in (1..).zip(OVERLAPPING) {
            write_addresses(addresses);
            assert_reloads(&proxy, reloads);
            for _ in 0..5 {
                open(LISTEN_V4);
            }
        }
        down.assert_reaches(&up, b"still");
        // A start still fails where another program has the address.
        drop(proxy);
        let _other = Backend::listen(&lab.server, LISTEN_V4);
        let config = format!("--config={}", scratch.path_text("proxy.toml"));
        let output = Peername::run(&lab.server, &["proxy", &config, workers]);
        assert_contains(&stderr_text(&output), &["another program listens there"]);
    }
}

/// Another program with SO_REUSEPORT may listen on an address of the proxy's wildcard. A socket of the proxy on the same address
/// would take some of that program's clients.
#[test]
fn reload_does_not_join_another_program_beside_an_own_wildcard() {
    let specific = SocketAddr::from(([127, 0, 0, 1], LISTEN_V4.port()));
    let shared = BindOptions {
        reuse_port: true,
        v6_only: false,
    };
    for protocol in ["tcp", "udp"] {
        let (lab, scratch) = (Lab::new(), Scratch::new());
        let (proxy, write_addresses) = start(&lab, &scratch, "--workers=1", protocol);
        write_addresses(&["0.0.0.0:8443"]);
        assert_reloads(&proxy, 1);
        let other: OwnedFd = lab.server.enter(|| match protocol {
            "tcp" => listener::listen(specific, shared)
                .expect("a listener")
                .into(),
            _ => udp::listen(specific, shared).expect("a socket").into(),
        });
        write_addresses(&["0.0.0.0:8443", "127.0.0.1:8443"]);
        proxy.reload("another program listens there");
        drop(other);
        proxy.reload("\"reloaded\"");
    }
}

/// IPv4 is accepted at the addresses that are listed, and at no other.
#[test]
fn ipv6_wildcard_beside_an_ipv4_address_accepts_no_other_ipv4() {
    let lab = Lab::new();
    let target = format!("--target={TARGET_V4}");
    let listen = ["--listen=127.0.0.1:8443", "--listen=[::]:8443"];
    let args = [&["proxy", "--trust=any", &target], &listen[..]].concat();
    let _proxy = Peername::start(&lab.server, &args, &["[::1]:8443".parse().unwrap()]);
    let refused = lab.balancer.enter(|| TcpStream::connect(LISTEN_V4));
    let error = refused.expect_err("nothing listens there").kind();
    assert_eq!(error, ErrorKind::ConnectionRefused);
}

/// Over UDP, where each table has sockets of its own, also if the table with `[::]` is the first.
#[test]
fn ipv6_wildcard_of_any_udp_table_accepts_no_other_ipv4() {
    let specific = "127.0.0.1:8443";
    for addresses in [["[::]:8443", specific], [specific, "[::]:8443"]] {
        let (lab, scratch) = (Lab::new(), Scratch::new());
        let (proxy, write_addresses) = start(&lab, &scratch, "--workers=1", "udp");
        write_addresses(&addresses);
        assert_reloads(&proxy, 1);
        let bind = || UdpSocket::bind((BALANCER_V4, 0));
        let client = lab.balancer.enter(bind).expect("a socket");
        client.connect(LISTEN_V4).expect("a route");
        client
            .set_read_timeout(Some(WAIT_LIMIT))
            .expect("a time limit");
        client.send(b"?").expect("it is sent");
        let refused = client.recv(&mut [0]).expect_err("nothing listens there");
        assert_eq!(
            refused.kind(),
            ErrorKind::ConnectionRefused,
            "{addresses:?}"
        );
    }
}

#[test]
fn reload_replaces_an_overlapping_address_over_udp() {
    for workers in ["--workers=1", "--workers=2"] {
        let (lab, scratch) = (Lab::new(), Scratch::new());
        let (proxy, write_addresses) = start(&lab, &scratch, workers, "udp");
        let backend = DatagramSocket::bind(&lab.server, TARGET_V4);
        let balancer = DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0));
        let assert_served = |client: SocketAddr| {
            let header = header_bytes::v2_udp(client, FRONT_V4);
            balancer.round_trip(LISTEN_V4, &header, &backend, client);
        };
        let earlier = fresh_client_v4();
        assert_served(earlier);
        // The last two changes are left out, because the session of `earlier` at `[::]` would go on and hold the port that its
        // next session needs.
        for (reloads, addresses) in (1..).zip(&OVERLAPPING[..6]) {
            write_addresses(addresses);
            assert_reloads(&proxy, reloads);
            // A new client, and one whose session was open before.
            assert_served(fresh_client_v4());
            assert_served(earlier);
        }
    }
}

/// Sends SIGHUP, and waits until `reloads` reloads have succeeded; panics if one is refused.
#[track_caller]
fn assert_reloads(proxy: &Peername, reloads: usize) {
    proxy.signal(Signal::HUP);
    wait_until("the reload", || {
        assert_eq!(proxy.count_logged("refused"), 0, "{}", proxy.log());
        proxy.count_logged("\"reloaded\"") == reloads
    });
}

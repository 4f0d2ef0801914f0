//! docs/proxy.md, udp.md and destinations.md: their first commands serve a client.

use super::follow::{Network, shell, start};
use crate::harness::addr::addr;
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes::v2;
use crate::harness::lab::{Host, Process, Scratch};
use crate::harness::page::Page;

/// The balancer with its public address, and the host.
fn hosts() -> (Host, Host) {
    let (balancer, host) = (Host::new(), Host::new());
    balancer.add_veth("eth0", &host, "eth0");
    balancer.add_addresses("eth0", &["192.0.2.10/24"]);
    balancer.ip("address add 198.51.100.10/32 dev lo");
    host.add_addresses("eth0", &["192.0.2.20/24"]);
    (balancer, host)
}

/// A client whose header has this destination reaches the backend, and is answered.
#[track_caller]
fn assert_serves(balancer: &Host, backend: &Backend, destination: &str) {
    let client = addr("203.0.113.7:5555");
    let header = v2(client, addr(destination), &[]);
    let down = Conn::connect_and_send(balancer, addr("192.0.2.20:8443"), &header);
    let up = backend.accept_from(client);
    up.assert_reaches(&down, b"hello");
}

#[test]
fn datagrams_go_from_the_sending_side_to_the_server_and_back() {
    let page = Page::new(include_str!("../../../docs/udp.md"));
    let (balancer, host) = hosts();
    let _proxy = start(&host, &[], &page.command("peername proxy --protocol udp"));
    let _forward = start(
        &balancer,
        &[],
        &page.command("peername forward --protocol udp"),
    );
    let server = DatagramSocket::bind(&host, addr("127.0.0.1:53"));
    let client = addr("198.51.100.10:5353");
    let socket = DatagramSocket::bind(&balancer, client);
    socket.send(addr("198.51.100.10:53"), &[b"query"]);
    server.expect_datagram(b"query", client);
    server.send(client, &[b"answer"]);
    socket.expect_datagram(b"answer", addr("198.51.100.10:53"));
}

#[test]
fn nginx_sends_datagrams_with_the_header_of_the_page() {
    let page = Page::new(include_str!("../../../docs/udp.md")).section("## nginx");
    let network = Network::new();
    let Network {
        client,
        balancer,
        host,
    } = &network;
    balancer.add_addresses("wan", &["198.51.100.10/32"]);
    client.ip("route add 198.51.100.10 via 203.0.113.1");
    let _proxy = start(host, &[], &page.command("peername proxy"));
    let scratch = Scratch::new();
    let module = "load_module /usr/lib/nginx/modules/ngx_stream_module.so;";
    let stream = page.fenced("nginx")[0];
    let pid = scratch.path_text("pid");
    let text = format!("{module}\ndaemon off;\nuser root;\npid {pid};\nevents {{}}\n{stream}");
    let config = scratch.write("nginx.conf", &text);
    let args = ["-e", "stderr", "-c", &config];
    let nginx = Process::start_in_pid_namespace(balancer, "nginx", &args);
    let _nginx = nginx.wait_bound(addr("198.51.100.10:53"));
    let server = DatagramSocket::bind(host, addr("127.0.0.1:53"));
    let from = addr("203.0.113.7:5353");
    let socket = DatagramSocket::bind(client, from);
    socket.send(addr("198.51.100.10:53"), &[b"query"]);
    server.expect_datagram(b"query", from);
    server.send(from, &[b"answer"]);
    socket.expect_datagram(b"answer", addr("198.51.100.10:53"));
}

#[test]
fn connection_goes_to_the_server_as_the_client() {
    let page = Page::new(include_str!("../../../docs/proxy.md"));
    let (balancer, host) = hosts();
    let backend = Backend::listen(&host, addr("127.0.0.1:22"));
    let _proxy = start(&host, &[], &page.command("peername proxy"));
    assert_serves(&balancer, &backend, "198.51.100.10:22");
}

#[test]
fn connection_goes_to_the_destination_in_its_header() {
    let page = Page::new(include_str!("../../../docs/destinations.md"));
    let (balancer, host) = hosts();
    shell(&host, "peername routes add");
    let backend = Backend::listen(&host, addr("127.0.0.1:8123"));
    let _proxy = start(&host, &[], &page.command("peername proxy"));
    assert_serves(&balancer, &backend, "127.0.0.1:8123");
}

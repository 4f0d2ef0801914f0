//! `docs/recipes.md`, command by command, on hosts with the addresses of the page.

use std::net::SocketAddr;

use super::follow::{Network, follow, follow_with};
use crate::harness::addr::{addr, fresh_client_v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::header_bytes::v2;
use crate::harness::lab::{Host, Process, Scratch};
use crate::harness::page::Page;
use crate::harness::programs::server::nginx;

#[test]
fn recipe_for_the_same_host_works() {
    let (balancer, server) = (Host::new(), Host::new());
    connect_to_balancer(&balancer, &server);
    let backend = Backend::listen(&server, addr("127.0.0.1:8443"));
    let _proxy = follow(recipe("Same host"), "server", &server);
    assert_served(&balancer, addr("192.0.2.20:443"), &backend);
}

/// The proxy has the capabilities that the recipe names and no others.
#[test]
fn recipe_for_a_shared_network_namespace_works() {
    let (balancer, pod) = (Host::new(), Host::new());
    connect_to_balancer(&balancer, &pod);
    let backend = Backend::listen(&pod, addr("127.0.0.1:8443"));
    let recipe = recipe("Shared network namespace");
    let named = ["NET_RAW", "NET_BIND_SERVICE", "NET_ADMIN"];
    assert!(named.iter().all(|name| recipe.text().contains(name)));
    let _proxy = follow_with(
        recipe,
        "pod",
        &pod,
        &["setpriv", "--bounding-set", CAPABILITIES],
    );
    assert_served(&balancer, addr("192.0.2.20:443"), &backend);
}

#[test]
fn recipe_for_a_bridge_network_works() {
    let (balancer, host, container) = (Host::new(), Host::new(), Host::new());
    connect_to_balancer(&balancer, &host);
    host.ip("link add br-app type bridge\nlink set br-app up");
    host.add_veth("veth0", &container, "eth0");
    host.ip("link set veth0 master br-app");
    host.add_addresses("br-app", &["172.18.0.1/16"]);
    container.add_addresses("eth0", &["172.18.0.2/16"]);
    container.ip("route add default via 172.18.0.1");
    let backend = Backend::listen(&container, addr("172.18.0.2:8443"));
    let _proxy = follow(recipe("Bridge network"), "host", &host);
    assert_served(&balancer, addr("192.0.2.20:443"), &backend);
}

/// A veth pair stands for the tunnel. The server's default route leaves by another device, which must not matter.
#[test]
fn recipe_for_a_home_server_behind_a_vps_works() {
    let (vps, home, router) = (Host::new(), Host::new(), Host::new());
    vps.add_veth("wg0", &home, "wg0");
    vps.add_addresses("wg0", &["10.9.0.1/24"]);
    home.add_addresses("wg0", &["10.9.0.2/24"]);
    add_uplink(&home, &router);
    home.sysctl("net.ipv4.conf.all.src_valid_mark", "1");
    let backend = Backend::listen(&home, addr("127.0.0.1:8443"));
    let _proxy = follow(recipe("Home server behind a VPS"), "home", &home);
    assert_served(&vps, addr("10.9.0.2:443"), &backend);
}

#[test]
fn recipe_without_a_balancer_works() {
    let network = Network::new();
    network
        .balancer
        .add_addresses("wan", &["2001:db8:113::1/64"]);
    network
        .client
        .add_addresses("eth0", &["2001:db8:113::7/64"]);
    let backends =
        ["127.0.0.1:8443", "[::1]:8443"].map(|target| Backend::listen(&network.host, addr(target)));
    let recipe = recipe("No balancer");
    let _proxy = follow(recipe, "server", &network.host);
    let _forward = follow(recipe, "edge", &network.balancer);
    for (edge, backend) in ["203.0.113.1:443", "[2001:db8:113::1]:443"]
        .into_iter()
        .zip(&backends)
    {
        let down = Conn::connect(&network.client, addr(edge));
        let up = backend.accept_from(down.local_addr());
        up.assert_reaches(&down, b"seen");
    }
}

/// nginx reads the header of `forward` itself.
#[test]
fn recipe_for_nginx_without_a_balancer_works() {
    let network = Network::new();
    let recipe = recipe("No balancer");
    let scratch = Scratch::new();
    let server = format!("{} return 204;", recipe.fenced("nginx")[0]);
    let config = nginx::write_config(&scratch, "user root;", nginx::PEER, &server);
    let args = ["-c", &config, "-e", "stderr"];
    let nginx = Process::start_in_pid_namespace(&network.host, "nginx", &args);
    let _nginx = nginx.wait_listening(&[addr("192.0.2.20:443")]);
    let _forward = follow(recipe, "edge", &network.balancer);
    let request = b"GET / HTTP/1.0\r\n\r\n";
    let down = Conn::connect_and_send(&network.client, addr("203.0.113.1:443"), request);
    assert_eq!(nginx::logged_client(&scratch, 0), down.local_addr());
}

#[test]
fn recipe_for_another_host_works() {
    let (balancer, proxy, backend) = (Host::new(), Host::new(), Host::new());
    let router = Host::new();
    connect_to_balancer(&balancer, &proxy);
    proxy.add_veth("eth1", &backend, "eth1");
    proxy.add_addresses("eth1", &["10.0.0.2/24"]);
    backend.add_addresses("eth1", &["10.0.0.5/24"]);
    add_uplink(&backend, &router);
    let server = Backend::listen(&backend, addr("10.0.0.5:8443"));
    let recipe = recipe("Another host");
    let _proxy = follow(recipe, "proxy", &proxy);
    assert!(follow(recipe, "backend", &backend).is_none());
    assert_served(&balancer, addr("192.0.2.20:443"), &server);
}

fn recipe(title: &str) -> Page {
    Page::new(include_str!("../../../docs/recipes.md")).section(&format!("## {title}"))
}

/// Connects the balancer with the proxy's host.
fn connect_to_balancer(balancer: &Host, proxy: &Host) {
    balancer.add_veth("eth0", proxy, "eth0");
    balancer.add_addresses("eth0", &["192.0.2.10/24"]);
    proxy.add_addresses("eth0", &["192.0.2.20/24"]);
}

/// Adds a default route by which no reply may leave.
fn add_uplink(host: &Host, router: &Host) {
    host.add_veth("up0", router, "eth0");
    host.add_addresses("up0", &["192.168.1.2/24"]);
    router.add_addresses("eth0", &["192.168.1.1/24"]);
    host.ip("route add default via 192.168.1.1");
}

#[track_caller]
fn assert_served(balancer: &Host, to: SocketAddr, backend: &Backend) {
    let client = fresh_client_v4();
    let down = Conn::connect_and_send(balancer, to, &v2(client, addr("203.0.113.1:443"), &[]));
    let up = backend.accept_from(client);
    up.send(&[7; 100_000]);
    assert_eq!(down.recv(100_000), [7; 100_000]);
}

const CAPABILITIES: &str = "-all,+net_raw,+net_bind_service,+net_admin";

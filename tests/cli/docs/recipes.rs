//! `docs/recipes.md`, command by command, on hosts with the addresses of the page.

use std::net::SocketAddr;
use std::path::Path;

use crate::harness::addr::{addr, fresh_client_v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::header_bytes::v2;
use crate::harness::lab::{Host, Process};
use crate::harness::peername::BINARY;

#[test]
fn recipe_for_the_same_host_works() {
    let (balancer, server) = (Host::new(), Host::new());
    wan(&balancer, &server);
    let backend = Backend::listen(&server, addr("127.0.0.1:8443"));
    let _proxy = Recipe::from_section("Same host").follow("server", &server);
    assert_served(&balancer, addr("192.0.2.20:443"), &backend);
}

/// With the capabilities that the recipe names and no others.
#[test]
fn recipe_for_a_shared_network_namespace_works() {
    let (balancer, pod) = (Host::new(), Host::new());
    wan(&balancer, &pod);
    let backend = Backend::listen(&pod, addr("127.0.0.1:8443"));
    let recipe = Recipe::from_section("Shared network namespace");
    let named = ["NET_RAW", "NET_BIND_SERVICE", "NET_ADMIN"];
    assert!(named.iter().all(|name| recipe.0.contains(name)));
    let _proxy = recipe.follow_with("pod", &pod, &["setpriv", "--bounding-set", CAPABILITIES]);
    assert_served(&balancer, addr("192.0.2.20:443"), &backend);
}

#[test]
fn recipe_for_a_bridge_network_works() {
    let (balancer, host, container) = (Host::new(), Host::new(), Host::new());
    wan(&balancer, &host);
    host.ip("link add br-app type bridge\nlink set br-app up");
    host.add_veth("veth0", &container, "eth0");
    host.ip("link set veth0 master br-app");
    host.add_addresses("br-app", &["172.18.0.1/16"]);
    container.add_addresses("eth0", &["172.18.0.2/16"]);
    container.ip("route add default via 172.18.0.1");
    let backend = Backend::listen(&container, addr("172.18.0.2:8443"));
    let _proxy = Recipe::from_section("Bridge network").follow("host", &host);
    assert_served(&balancer, addr("192.0.2.20:443"), &backend);
}

/// A veth pair stands for the tunnel. The server's own default route is another, which must not matter.
#[test]
fn recipe_for_a_home_server_behind_a_vps_works() {
    let (vps, home, router) = (Host::new(), Host::new(), Host::new());
    vps.add_veth("wg0", &home, "wg0");
    vps.add_addresses("wg0", &["10.9.0.1/24"]);
    home.add_addresses("wg0", &["10.9.0.2/24"]);
    uplink(&home, &router);
    home.sysctl("net.ipv4.conf.all.src_valid_mark", "1");
    let backend = Backend::listen(&home, addr("127.0.0.1:8443"));
    let _proxy = Recipe::from_section("Home server behind a VPS").follow("home", &home);
    assert_served(&vps, addr("10.9.0.2:443"), &backend);
}

#[test]
fn recipe_for_another_host_works() {
    let (balancer, proxy, backend) = (Host::new(), Host::new(), Host::new());
    let router = Host::new();
    wan(&balancer, &proxy);
    proxy.add_veth("eth1", &backend, "eth1");
    proxy.add_addresses("eth1", &["10.0.0.2/24"]);
    backend.add_addresses("eth1", &["10.0.0.5/24"]);
    uplink(&backend, &router);
    let server = Backend::listen(&backend, addr("10.0.0.5:8443"));
    let recipe = Recipe::from_section("Another host");
    let _proxy = recipe.follow("proxy", &proxy);
    assert!(recipe.follow("backend", &backend).is_none());
    assert_served(&balancer, addr("192.0.2.20:443"), &server);
}

/// One section of the page.
struct Recipe(&'static str);

impl Recipe {
    fn from_section(title: &str) -> Self {
        let recipes = include_str!("../../../docs/recipes.md");
        let start = format!("\n## {title}\n");
        let (_, rest) = recipes.split_once(&start).expect("the section");
        Self(rest.split("\n## ").next().unwrap_or(rest))
    }

    /// Runs the commands for this host, in order; the proxy, if one is among them, goes on and is returned.
    fn follow(&self, name: &str, host: &Host) -> Option<Process> {
        self.follow_with(name, host, &[])
    }

    fn follow_with(&self, name: &str, host: &Host, through: &[&str]) -> Option<Process> {
        let commands = self.commands(name);
        assert!(!commands.is_empty(), "nothing to do on {name}");
        let mut proxy = None;
        for command in commands {
            if command.starts_with("peername proxy ") {
                proxy = Some(start(host, through, &command));
            } else {
                host.run("sh", &["-ec", &with_path(&command)]);
            }
        }
        proxy
    }

    /// The indented lines below "On `name`:", continued ones joined.
    fn commands(&self, name: &str) -> Vec<String> {
        let heading = format!("On `{name}`:\n");
        let (_, rest) = self.0.split_once(&heading).expect("the host");
        let is_code = |line: &&str| line.is_empty() || line.starts_with("    ");
        let code: Vec<&str> = rest.lines().take_while(is_code).map(str::trim).collect();
        let joined = code.join("\n").replace("\\\n", "");
        let lines = joined.lines().filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    }
}

fn start(host: &Host, through: &[&str], command: &str) -> Process {
    let script = with_path(&command.replacen("peername proxy", "exec peername proxy", 1));
    let process = Process::start_through(host, through, "sh", &["-ec", &script]);
    process.wait_logged("listening");
    process
}

fn with_path(command: &str) -> String {
    let bin = Path::new(BINARY).parent().expect("a directory");
    format!("PATH={}:$PATH; export PATH; {command}", bin.display())
}

/// Connects the balancer with the proxy's host.
fn wan(balancer: &Host, proxy: &Host) {
    balancer.add_veth("eth0", proxy, "eth0");
    balancer.add_addresses("eth0", &["192.0.2.10/24"]);
    proxy.add_addresses("eth0", &["192.0.2.20/24"]);
}

/// Adds a default route by which no reply may leave.
fn uplink(host: &Host, router: &Host) {
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

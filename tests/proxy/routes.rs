//! Routing rules: added on request, shared with no other proxy, removed however the proxy ended.

mod keeper;
mod nat;
mod watch;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::addr::{LISTEN_V4, TARGET_V4, TARGET_V6, fresh_client_v4, fresh_client_v6, v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::{
    Host, Lab, Process, Scratch, assert_contains, stderr_text, stdout_text, wait_for, wait_until,
};
use crate::harness::peername::{AS_NOBODY, BINARY, Peername, copy_executable, words};
use crate::harness::rig::proxy::{connect_client, connect_fresh_client};

#[test]
fn setup_routes_adds_rules_and_removes_them() {
    let rig = RoutesRig::new();
    let server = &rig.lab.server;
    let before = server.routing_rules();
    let mut first = rig.proxy(8443, &["--setup-routes"]);
    rig.assert_clients_served(8443);
    let with_first = server.routing_rules();
    let mut second = rig.proxy(8444, &["--setup-routes"]);
    rig.assert_clients_served(8444);
    let with_second = &(&server.routing_rules() - &with_first) | &before;
    let removed = Peername::run(server, &["routes", "remove"]);
    assert_contains(&stderr_text(&removed), &["--all removes them, too"]);
    // Two proxies that need the same rules do not remove each other's.
    stop(&mut first);
    assert_as_before(server, &with_second);
    rig.assert_clients_served(8444);
    stop(&mut second);
    assert_as_before(server, &before);
    let log = second.log();
    assert!(!log.contains("is restored"), "{log}");
}

/// Proxies reserve their slots by abstract socket names, which any user can bind. Where another user has bound them, two
/// proxies still take a slot each, and none removes another's rules when the names become free.
#[test]
fn names_bound_by_another_user_do_not_block_the_routes() {
    let rig = RoutesRig::new();
    let server = &rig.lab.server;
    let before = server.routing_rules();
    let squatter =
        Process::start_through(server, AS_NOBODY, "/usr/bin/python3", &["-uc", SQUATTER]);
    squatter.wait_printed("bound 63");
    let mut first = rig.proxy(8443, &["--setup-routes"]);
    let mut second = rig.proxy(8444, &["--setup-routes"]);
    for port in [8443, 8444] {
        rig.assert_clients_served(port);
    }
    let tables = server.run(
        "sh",
        &["-c", "ip rule | grep -o 'lookup 211[0-9]*' | sort -u"],
    );
    assert_eq!(tables.lines().count(), 2, "{tables}");
    drop(squatter);
    let mut third = rig.proxy(8445, &["--setup-routes"]);
    for port in [8443, 8444, 8445] {
        rig.assert_clients_served(port);
    }
    for proxy in [&mut first, &mut second, &mut third] {
        stop(proxy);
    }
    assert_as_before(server, &before);
}

/// As in the container image: the file has permitted capabilities, and no effective bit. With that bit, execve(2) fails where
/// one of the capabilities is not in the bounding set.
#[test]
fn file_capabilities_need_no_effective_bit() {
    let (lab, scratch) = (Lab::without_routes(), Scratch::new());
    let copy = copy_executable(&lab.server, &scratch);
    let all = "cap_net_admin,cap_net_raw,cap_net_bind_service+p";
    lab.server.run("setcap", &[all, &copy]);
    let without = [AS_NOBODY, &["--bounding-set=-all"]].concat();
    let listen = v4([10, 81, 0, 1], 8080);
    let forward = ["forward", "--listen=10.81.0.1:8080", "--to=127.0.0.1:80"];
    let _forward =
        Process::start_through(&lab.server, &without, &copy, &forward).wait_listening(&[listen]);
    let listen = v4([10, 81, 0, 1], 443);
    let proxy = words(
        "proxy --target=127.0.0.1:443 --listen=10.81.0.1:443 --trust=10.81.0.2 --setup-routes",
    );
    let _proxy =
        Process::start_through(&lab.server, AS_NOBODY, &copy, &proxy).wait_listening(&[listen]);
    let backend = Backend::listen(&lab.server, v4([127, 0, 0, 1], 443));
    let _open = connect_fresh_client(&lab, listen, &backend);
}

/// SIGKILL leaves a proxy no time to clean up, so its keeper, another process, removes the rules.
#[test]
fn killed_proxy_leaves_no_rules() {
    let rig = RoutesRig::new();
    let before = rig.lab.server.routing_rules();
    let first = rig.proxy(8443, &["--setup-routes"]);
    let second = rig.proxy(8444, &["--setup-routes"]);
    let rules = || {
        rig.lab
            .server
            .run("sh", &["-c", "ip rule; ip -6 rule"])
            .lines()
            .count()
    };
    // A proxy listens before its routes are there, and accepts connections when they are.
    rig.assert_clients_served(8443);
    rig.assert_clients_served(8444);
    let with_two = rules();
    first.signal(Signal::KILL);
    wait_until("the killed proxy's rules are gone", || rules() < with_two);
    rig.assert_clients_served(8444);
    second.signal(Signal::KILL);
    wait_until("all is as before", || {
        rig.lab.server.routing_rules() == before
    });
}

/// The binary may have a capability that its user does not have, so the user must not choose the nft that it executes.
#[test]
fn nft_of_the_callers_path_is_not_executed() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let executed = scratch.path_text("executed");
    scratch.write_program("nft", &format!("#!/bin/sh\ntouch {executed}\n"));
    let path = format!("PATH={}:/usr/bin:/bin", scratch.path_text(""));
    lab.server.run("env", &[&path, BINARY, "routes", "show"]);
    assert!(!Path::new(&executed).exists());
    // The control: a shell executes it.
    lab.server.run("env", &[&path, "sh", "-c", "nft"]);
    assert!(Path::new(&executed).exists());
}

/// After its route keeper was killed, a proxy goes on as long as the rules exist. When another process removes them, the proxy
/// exits, so that a service manager starts it again.
#[test]
fn lost_rules_of_a_killed_keeper_end_the_proxy() {
    let rig = RoutesRig::new();
    let scratch = Scratch::new();
    // Without IPv6 the probe over IPv6 proves nothing: the IPv4 one must notice.
    let server = &rig.lab.server;
    server.sysctl("net.ipv6.conf.all.disable_ipv6", "1");
    let with_target = |target: &str| {
        let table = format!(
            "setup-routes = true\n[[listen]]\naddress = [\"{LISTEN_V4}\"]\ntrust = [\"private\"]\n\
             target-v4 = \"{target}\"\n"
        );
        scratch.write("proxy.toml", &table)
    };
    // The target of the reload must be probed, not the target at the start.
    let args = ["proxy", "--config", &with_target("127.0.0.2:9000")];
    let mut proxy = Peername::start(server, &args, &[LISTEN_V4]);
    with_target("127.0.0.1:9000");
    proxy.signal(Signal::HUP);
    proxy.wait_logged("reloaded");
    kill_keeper(server, &proxy);
    let _down = connect_client(&rig.lab, LISTEN_V4, fresh_client_v4());
    rig.v4.accept();
    // The next proxy's keeper would remove them in the same way.
    server.run(BINARY, &["routes", "remove", "--all"]);
    let status = proxy.wait_exit(Duration::from_secs(10)).expect("an exit");
    assert_eq!(status.code(), Some(1));
}

/// Without `--target`, the proxy knows only the destinations that headers have named.
#[test]
fn lost_rules_of_a_named_destination_end_the_proxy() {
    let rig = RoutesRig::new();
    let server = &rig.lab.server;
    let args = words(
        "proxy --setup-routes --listen=10.81.0.1:8443 --trust=private --dynamic-destination \
         --allow-destination=127.0.0.1:9000",
    );
    let mut proxy = Peername::start(server, &args, &[LISTEN_V4]);
    let connect = || {
        let header = header_bytes::v1(fresh_client_v4(), TARGET_V4);
        let down = Conn::connect_and_send(&rig.lab.balancer, LISTEN_V4, &header);
        rig.v4.accept();
        down
    };
    let _before = connect();
    kill_keeper(server, &proxy);
    let _after = connect();
    server.run(BINARY, &["routes", "remove", "--all"]);
    let status = proxy.wait_exit(Duration::from_secs(10)).expect("an exit");
    assert_eq!(status.code(), Some(1));
}

/// Without the rules, a backend's replies would leave this host: clients are refused and the log has the remedy. Once the rules
/// are there, clients are served without a restart.
#[test]
fn missing_rules_refuse_clients_until_they_are_there() {
    let rig = RoutesRig::new();
    let proxy = rig.proxy(8443, &[]);
    let down = connect_client(&rig.lab, LISTEN_V4, fresh_client_v4());
    down.wait_reset();
    rig.v4.assert_no_connection();
    proxy.wait_logged("peername routes add");
    let added = Peername::run(
        &rig.lab.server,
        &["routes", "add", "-4127.0.0.1:9000", "-6[::1]:9000"],
    );
    assert!(added.status.success(), "{added:?}");
    for (client, backend) in [(fresh_client_v4(), &rig.v4), (fresh_client_v6(), &rig.v6)] {
        wait_for("clients are served", || {
            let down = connect_client(&rig.lab, LISTEN_V4, client);
            backend.accept_or_closed(&down)
        });
    }
    rig.assert_clients_served(8443);
}

/// A local server may open a flow to a client from loopback and a port other than the target's, as in FTP's active mode. A
/// connection then fails at once, as without the rules, and a datagram reaches no local socket.
#[test]
fn flows_that_a_local_server_opens_are_not_looped_back() {
    let rig = RoutesRig::new();
    let server = &rig.lab.server;
    let _proxy = rig.proxy(8443, &["--setup-routes"]);
    rig.assert_clients_served(8443);
    let bystander = DatagramSocket::bind(server, v4([0, 0, 0, 0], 9100));
    let failed = server.run("python3", &["-c", OPEN_FROM_LOOPBACK]);
    bystander.assert_silent();
    assert_eq!(failed.lines().count(), 2, "{failed}");
    assert!(!failed.contains("timed out"), "{failed}");
}

/// With `setup-routes`, missing rules are no failure.
#[test]
fn doctor_reports_rules_that_the_start_will_add() {
    let (rig, files) = (RoutesRig::new(), Scratch::new());
    let doctor = |keys: &str| {
        let text = format!(
            "{keys}[[listen]]\naddress = [\"{LISTEN_V4}\"]\ntarget-v4 = \"{TARGET_V4}\"\n\
             target-v6 = \"{TARGET_V6}\"\ntrust = [\"10.81.0.0/24\"]\n"
        );
        let file = files.write("proxy.toml", &text);
        let output = Peername::run(&rig.lab.server, &["doctor", "--config", &file]);
        let report = stdout_text(&output);
        (output.status.code(), report)
    };
    let (code, report) = doctor("");
    assert_eq!(code, Some(3), "{report}");
    let (code, report) = doctor("setup-routes = true\n");
    assert!(!report.contains("FAIL"), "{report}");
    assert_eq!(code, Some(0), "{report}");
    for target in [TARGET_V4, TARGET_V6] {
        let will = format!("ok    routes: the start adds the rules for replies of {target}");
        assert!(report.contains(&will), "{report}");
    }
}

/// A lab with backends and without routing rules.
struct RoutesRig {
    v4: Backend,
    v6: Backend,
    lab: Lab,
}

impl RoutesRig {
    fn new() -> Self {
        let lab = Lab::without_routes();
        Self {
            v4: Backend::listen(&lab.server, TARGET_V4),
            v6: Backend::listen(&lab.server, TARGET_V6),
            lab,
        }
    }

    fn proxy(&self, port: u16, args: &[&str]) -> Peername {
        let listen = v4([10, 81, 0, 1], port);
        let option = format!("--listen={listen}");
        let targets = words("--target-v4=127.0.0.1:9000 --target-v6=[::1]:9000 --trust=private");
        let args = [&["proxy", &option], &targets[..], args].concat();
        Peername::start(&self.lab.server, &args, &[listen])
    }

    /// Connects a client; returns whether it reaches the backend with its own address.
    fn is_v4_client_served(&self, port: u16) -> bool {
        let (client, listen) = (fresh_client_v4(), v4([10, 81, 0, 1], port));
        let down = connect_client(&self.lab, listen, client);
        let up = self.v4.accept_or_closed(&down);
        up.is_some_and(|up| up.peer_addr() == client)
    }

    /// Asserts that clients of both families reach their backends with their own addresses.
    #[track_caller]
    fn assert_clients_served(&self, port: u16) {
        for (client, backend) in [(fresh_client_v4(), &self.v4), (fresh_client_v6(), &self.v6)] {
            let listen = v4([10, 81, 0, 1], port);
            let down = connect_client(&self.lab, listen, client);
            let up = backend.accept_from(client);
            up.assert_reaches(&down, b"back");
        }
    }
}

fn kill_keeper(server: &Host, proxy: &Peername) {
    let parent = proxy.pid().to_string();
    server.run(
        "pkill",
        &["-KILL", "--parent", &parent, "--full", "routes keep"],
    );
    proxy.wait_logged_parts(&["ERROR", "keeper"]);
}

fn stop(proxy: &mut Peername) {
    proxy.signal(Signal::TERM);
    proxy.wait_success(Duration::from_secs(3));
}

#[track_caller]
fn assert_as_before(host: &Host, before: &BTreeSet<String>) {
    let now = host.routing_rules();
    let changed: Vec<&String> = now.symmetric_difference(before).collect();
    assert!(changed.is_empty(), "left behind or lost: {changed:#?}");
}

const OPEN_FROM_LOOPBACK: &str = include_str!("routes/open_from_loopback.py");
const SQUATTER: &str = include_str!("routes/squatter.py");

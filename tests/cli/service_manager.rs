//! Under a service manager: notifications, socket activation, and the units that are shipped.

mod notifications;
mod transparent;

use std::collections::HashSet;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::addr::{BALANCER_V4, LISTEN_V4, LISTEN_V6, TARGET_V4, fresh_client_v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::{
    Host, Lab, Process, Scratch, assert_contains, stderr_text, stdout_text, wait_until,
};
use crate::harness::peername::{
    AS_NOBODY, BINARY, NO_CAPABILITIES, PROXY_ARGS, Peername, copy_executable,
};
use crate::harness::programs::BECOME_ACTIVATED;
use crate::harness::rig::intercept::recv_head;
use crate::harness::rig::proxy::{connect_client, connect_fresh_client, front_of};
use crate::harness::rig::upgrade::UpgradeRig;

/// A service manager's sockets are passed on at each upgrade.
#[test]
fn activated_sockets_survive_upgrades() {
    let (backends, scratch) = (Backends::new(), Scratch::new());
    let script = scratch.write("activate.py", BECOME_ACTIVATED);
    let args = [PROXY_ARGS, &["--protocol=both"]].concat();
    let mut rig = UpgradeRig::start_with(&backends.lab.server, &["python3", &script], &args);
    let client = fresh_client_v4();
    for round in 0..4 {
        backends.assert_serves(20, client);
        if round < 3 {
            rig.upgrade(&backends.lab.server).expect("it upgrades");
            rig.wait_drained();
        }
    }
}

/// An upgrade that leaves out the socket of `--admin` is refused, like a start: its clients would wait for ever.
#[test]
fn upgrade_keeps_the_activated_admin_socket_in_use() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let config = |admin: &str| {
        let table = "[[forward]]\nlisten = [\"127.0.0.1:8443\"]\nprotocol = \"udp\"\nto = \"127.0.0.1:9000\"\n";
        scratch.write("forward.toml", &format!("{admin}\n{table}"))
    };
    let file = config("admin = \"127.0.0.1:8443\"");
    let script = BECOME_ACTIVATED.replace("10.81.0.1", "127.0.0.1");
    let script = scratch.write("activate.py", &script);
    let args = ["forward", &format!("--config={file}")];
    let mut rig = UpgradeRig::start_with(&lab.server, &["python3", &script], &args);
    let assert_ready = || {
        let url = "http://127.0.0.1:8443/readyz";
        assert_eq!(lab.server.run("curl", &["-sf", url]), "ready\n");
    };
    for _ in 0..2 {
        rig.upgrade(&lab.server).expect("it upgrades");
        rig.wait_drained();
        assert_ready();
    }
    config("");
    let error = rig.upgrade(&lab.server).expect_err("a refusal");
    assert_contains(&error, &["passed socket 3 for TCP 127.0.0.1:8443"]);
    assert_ready();
}

/// Socket activation: clients that come while no proxy runs wait in the manager's socket, and are served by
/// the next proxy.
#[test]
fn activated_sockets_survive_a_restart() {
    let (backends, scratch) = (Backends::new(), Scratch::new());
    let args = [&[BINARY], PROXY_ARGS, &["--protocol=both"]].concat();
    let activator = activate(
        &backends.lab.server,
        &scratch,
        &["8443/tcp", "8443/udp"],
        &args,
    );
    for round in 0..3 {
        let client = fresh_client_v4();
        // The first connection of each round comes before there is a proxy.
        let down = connect_client(&backends.lab, LISTEN_V4, client);
        scratch.write(&format!("start-{round}"), "");
        assert_eq!(backends.tcp.accept().peer_addr(), client);
        let pid = activator.wait_line("with its pid", |line| {
            line.strip_prefix(&format!("pid {round} "))?.parse().ok()
        });
        backends.assert_serves(50, client);
        drop(down);
        kill_process(Pid::from_raw(pid).expect("a pid"), Signal::TERM).expect("kill");
        activator.wait_printed(&format!("ended {round} 0"));
    }
}

/// The manager's socket has no SO_REUSEPORT, so the proxy's own listener on `[::]` leaves IPv4 to it.
#[test]
fn own_listener_on_all_addresses_leaves_ipv4_to_an_activated_socket() {
    let (backends, scratch) = (Backends::new(), Scratch::new());
    let args = [
        &[BINARY],
        PROXY_ARGS,
        &["--protocol=both", "--listen=[::]:8443"],
    ]
    .concat();
    let sockets = ["8443/tcp", "8443/udp"];
    let _activator = activate(&backends.lab.server, &scratch, &sockets, &args);
    scratch.write("start-0", "");
    backends.assert_serves(10, fresh_client_v4());
}

/// With passed sockets `forward` and `intercept` listen on a port below 1024 without a capability.
#[test]
fn forward_and_intercept_use_activated_sockets() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let listen = SocketAddr::new(LISTEN_V4.ip(), 80);
    let program = copy_executable(&lab.server, &scratch);
    let run = |args: &[&str]| {
        let args = [
            &["/usr/bin/env"],
            AS_NOBODY,
            NO_CAPABILITIES,
            &[&program],
            args,
        ]
        .concat();
        let activator = activate(&lab.server, &scratch, &["80/tcp"], &args);
        scratch.write("start-0", "");
        activator
    };
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let to = format!("--to={TARGET_V4}");
    let listen_option = format!("--listen={listen}");
    let forward = run(&["forward", &listen_option, &to]);
    let client = Conn::connect(&lab.balancer, listen);
    let header = header_bytes::v2(client.local_addr(), listen, &[]);
    assert_eq!(backend.accept().recv(header.len()), header);
    drop((client, forward));

    let ca = scratch.path_text("ca");
    lab.server.run(BINARY, &["ca", "init", "--ca", &ca]);
    lab.server.run("chown", &["-R", "65534", &ca]);
    let access = "--allow-client=any";
    let _intercept = run(&["intercept", &listen_option, access, "--ca", &ca]);
    let client = Conn::connect_and_send(&lab.balancer, listen, b"GET / HTTP/1.1\r\n\r\n");
    let response = recv_head(&client);
    assert!(response.starts_with("HTTP/1.1 400"), "{response}");
}

/// Backends of both protocols, and a balancer.
struct Backends {
    tcp: Backend,
    udp: DatagramSocket,
    balancer: DatagramSocket,
    lab: Lab,
}

impl Backends {
    fn new() -> Self {
        let lab = Lab::new();
        Self {
            tcp: Backend::listen(&lab.server, TARGET_V4),
            udp: DatagramSocket::bind(&lab.server, TARGET_V4),
            balancer: DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0)),
            lab,
        }
    }

    /// Asserts that the activated sockets serve connections and a datagram, and that the proxy's own IPv6 listener accepts.
    #[track_caller]
    fn assert_serves(&self, connections: usize, client: SocketAddr) {
        for _ in 0..connections {
            let _open = connect_fresh_client(&self.lab, LISTEN_V4, &self.tcp);
        }
        drop(Conn::connect(&self.lab.balancer, LISTEN_V6));
        let header = header_bytes::v2_udp(client, front_of(client));
        self.balancer
            .round_trip(LISTEN_V4, &header, &self.udp, client);
    }
}

/// The start fails, because clients of a socket from which nothing accepts would wait for ever.
#[test]
fn unused_activated_socket_is_named() {
    let lab = Lab::new();
    let scratch = Scratch::new();
    let args = [&[BINARY], PROXY_ARGS].concat();
    for (socket, named) in [
        ("8444/tcp", "TCP 10.81.0.1:8444"),
        ("8443/udp", "UDP 10.81.0.1:8443"),
    ] {
        let activator = activate(&lab.server, &scratch, &["8443/tcp", socket], &args);
        scratch.write("start-0", "");
        activator.wait_logged_parts(&[named, "socket 4 (second)"]);
        activator.wait_printed("ended 0 1");
    }
}

/// The start fails, because of two sockets with one address, as for two devices, only the first would be accepted from.
#[test]
fn second_activated_socket_of_an_address_is_refused() {
    let lab = Lab::new();
    let scratch = Scratch::new();
    let args = [&[BINARY], PROXY_ARGS].concat();
    for socket in ["8443/tcp", "8443/udp"] {
        let activator = activate(&lab.server, &scratch, &[socket, socket], &args);
        scratch.write("start-0", "");
        activator.wait_logged("two sockets of the service manager have the address 10.81.0.1:8443");
        activator.wait_printed("ended 0 2");
    }
}

/// A reload that would stop accepting from an activated socket is refused.
#[test]
fn reload_keeps_activated_sockets_in_use() {
    let lab = Lab::new();
    let scratch = Scratch::new();
    let table = |port| {
        format!(
            "[[listen]]\naddress = [\"10.81.0.1:{port}\"]\ntarget-v4 = \"{TARGET_V4}\"\n\
             trust = [\"10.81.0.0/24\"]\n"
        )
    };
    let file = scratch.write("proxy.toml", &(table(8443) + &table(8444)));
    let config = format!("--config={file}");
    let args = [BINARY, "proxy", &config];
    let activator = activate(&lab.server, &scratch, &["8443/tcp", "8444/tcp"], &args);
    scratch.write("start-0", "");
    let pid = activator.wait_line("with its pid", |line| {
        line.strip_prefix("pid 0 ")?.parse().ok()
    });
    let pid = Pid::from_raw(pid).expect("a pid");
    activator.wait_logged("listening");
    scratch.write("proxy.toml", &table(8443));
    kill_process(pid, Signal::HUP).expect("kill");
    activator.wait_logged_parts(&[
        "reload refused",
        "passed socket 4 (second) for TCP 10.81.0.1:8444",
    ]);
    kill_process(pid, Signal::TERM).expect("kill");
    activator.wait_printed("ended 0 0");
}

/// Two instances at once, stopped and started again: as `systemctl restart peername@a peername@b` does.
#[test]
fn two_instances_restart_together() {
    let lab = Lab::without_routes();
    let scratch = Scratch::new();
    let before = lab.server.routing_rules();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    for _ in 0..2 {
        let mut instances = Vec::new();
        for port in [8443, 8444] {
            let listen = SocketAddr::new(LISTEN_V4.ip(), port);
            let file = format!(
                "setup-routes = true\n[[listen]]\naddress = [\"{listen}\"]\ntarget-v4 = \"{TARGET_V4}\"\n\
                 trust = [\"private\"]\n"
            );
            let config = format!("--config={}", scratch.write(&format!("{port}.toml"), &file));
            instances.push(Peername::start(&lab.server, &["proxy", &config], &[listen]));
            let client = fresh_client_v4();
            // The instance listens before its routes are there, and accepts once they are.
            let _down = connect_client(&lab, listen, client);
            assert_eq!(backend.accept().peer_addr(), client);
        }
        for mut instance in instances {
            instance.signal(Signal::TERM);
            instance.wait_success(Duration::from_secs(5));
        }
        wait_until("no route is left behind", || {
            lab.server.routing_rules() == before
        });
    }
}

/// systemd itself finds no unknown or misspelt directive, and rates the sandbox.
#[test]
fn units_are_valid_and_tight() {
    let scratch = Scratch::new();
    let units = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd");
    let mut paths = Vec::new();
    let mut runtime_dirs = HashSet::new();
    for unit in fs::read_dir(units).expect("the units") {
        let unit = unit.expect("a unit").path();
        let text = fs::read_to_string(&unit).expect("text");
        let name = unit.file_name().and_then(|name| name.to_str());
        let name = name.expect("a name").replace('@', "@instance");
        // The runtimes of --runtime-uid have to enter the folder of the socket.
        if name == "peername-agent.service" {
            assert!(text.contains("RuntimeDirectoryMode=0755\n"), "{text}");
        }
        // systemd removes the directory of a unit that stops, with all that is in it. An instance may have the name of a command.
        let mut lines = text.lines();
        if let Some(dir) = lines.find_map(|line| line.strip_prefix("RuntimeDirectory=")) {
            let is_new = runtime_dirs.insert(dir.replace("%i", "forward"));
            assert!(is_new && !dir.contains('/'), "{name}: {dir}");
        }
        // systemd requires that the program exists.
        paths.push(scratch.write(&name, &text.replace("/usr/bin/peername", BINARY)));
    }
    assert_eq!(paths.len(), 7, "{paths:?}");
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=yes"])
        .args(&paths)
        .output()
        .expect("systemd-analyze");
    let printed = stderr_text(&output);
    let findings: Vec<_> = printed
        .lines()
        .filter(|line| line.contains("peername"))
        // systemd 252 does not know this directive.
        .filter(|line| !line.contains("FileDescriptorStorePreserve"))
        .collect();
    assert_eq!(findings, [""; 0], "{printed}");
    for path in paths.iter().filter(|path| path.ends_with(".service")) {
        // The agent enters the networks of containers, and writes to their memory. The others drop capabilities: capset(2) can
        // only take away, but counts as the whole group @privileged.
        let threshold = if path.contains("agent") { "40" } else { "20" };
        let output = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--threshold", threshold, path])
            .output()
            .expect("systemd-analyze");
        let printed = stdout_text(&output);
        assert!(output.status.success(), "{path}: {printed}");
    }
}

/// A service manager in a few lines: opens `PORT/tcp` or `PORT/udp` on the server's address, and runs the
/// program with these sockets as its descriptors from 3 on, each time the next file `start-N` appears.
fn activate(host: &Host, scratch: &Scratch, sockets: &[&str], program: &[&str]) -> Process {
    let script = scratch.write("activate.py", ACTIVATE);
    let (sockets, directory) = (sockets.join(" "), scratch.path_text("start"));
    let args = [&[script.as_str(), &sockets, &directory], program].concat();
    let activator = Process::start(host, "python3", &args);
    activator.wait_printed("open");
    activator
}

const ACTIVATE: &str = include_str!("service_manager/activate.py");

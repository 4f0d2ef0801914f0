//! cloudflare/mmproxy: its README, lists, exit codes.

use std::net::SocketAddr;

use crate::harness::addr::v4;
use crate::harness::lab::{Host, Lab, Process};
use crate::harness::rig::compat::{CompatRig, start_netcat};

/// The README's example, with its rules for a backend on loopback.
#[test]
fn readme_example_over_loopback_works() {
    let (rig, host) = (CompatRig::new(), Host::new());
    host.ip(
        "rule add from 127.0.0.1/8 iif lo table 100\nroute add local 0.0.0.0/0 dev lo table 100",
    );
    host.ip6("rule add from ::1/128 iif lo table 100\nroute add local ::/0 dev lo table 100");
    let backend = start_netcat(&host, "nc -kvnl 127.0.0.1 22");
    let _proxy = example(&rig, &host, "");
    let seen = hello(&rig, &host, &backend);
    // mmproxy-rs takes the same command line, and keeps the port.
    assert_eq!(seen, v4([1, 2, 3, 4], 11));
}

/// The routing rules that mmproxy printed: they use a mark and connection tracking.
#[test]
fn readme_example_with_marks_works() {
    let (rig, lab) = (CompatRig::new(), Lab::without_routes());
    let server = &lab.server;
    server.ip("route add default via 10.81.0.2\nrule add fwmark 123 lookup 100\nroute add local 0.0.0.0/0 dev lo table 100");
    server.ip6("route add default via fd81::2\nrule add fwmark 123 lookup 100\nroute add local ::/0 dev lo table 100");
    server.sysctl("net.ipv4.conf.eth0.route_localnet", "1");
    for program in ["iptables", "ip6tables"] {
        for rule in [
            "-t mangle -I PREROUTING -m mark --mark 123 -m comment --comment mmproxy -j CONNMARK --save-mark",
            "-t mangle -I OUTPUT -m connmark --mark 123 -m comment --comment mmproxy -j CONNMARK --restore-mark",
        ] {
            server.run(program, &rule.split(' ').collect::<Vec<_>>());
        }
    }
    let backend = start_netcat(server, "nc -kvnl 127.0.0.1 22");
    let _proxy = example(&rig, server, "-P ");
    assert_eq!(hello(&rig, server, &backend), v4([1, 2, 3, 4], 11));
}

/// Invalid lines of the list of networks are skipped, with a warning.
#[test]
fn invalid_line_of_a_list_is_skipped() {
    let (rig, host) = (CompatRig::new(), Host::new());
    host.ip(
        "rule add from 127.0.0.1/8 iif lo table 100\nroute add local 0.0.0.0/0 dev lo table 100",
    );
    rig.0
        .write("networks.txt", "; networks\n127.1.2.3/8 here\nnonsense\n");
    let backend = start_netcat(&host, "nc -kvnl 127.0.0.1 22");
    let proxy = rig
        .start(&host, &command(""))
        .wait_listening(&[v4([127, 0, 0, 1], 2222)]);
    proxy.wait_logged("networks.txt, line 3: not a network, ignored");
    // Host bits do not matter; in mmproxy such a line matched no address.
    hello(&rig, &host, &backend);
}

#[test]
fn failed_start_exits_with_1() {
    let (rig, host) = (CompatRig::new(), Host::new());
    rig.0.write("networks.txt", "0.0.0.0/0\n");
    rig.0.write("empty.txt", "# empty\n");
    for (options, text) in [
        ("-a none.txt -l 127.0.0.1:1", "none.txt"),
        ("-a empty.txt -l 127.0.0.1:1", "lists no network"),
        ("-a networks.txt -l 192.0.2.7:1", "can't listen on"),
    ] {
        let command =
            format!("exec -a cloudflare-mmproxy mmproxy {options} -4 127.0.0.1:2 -6 [::1]:2");
        rig.assert_exits(&host, &command, 1, text);
    }
}

fn example(rig: &CompatRig, host: &Host, more: &str) -> Process {
    rig.0.write("networks.txt", "0.0.0.0/0\n::/0\n");
    rig.start(host, &command(more))
        .wait_listening(&[v4([127, 0, 0, 1], 2222)])
}

fn command(more: &str) -> String {
    format!("sudo mmproxy {more}-a networks.txt -l 0.0.0.0:2222 -4 127.0.0.1:22 -6 '[::1]:22'")
}

/// Runs the README's test; returns the client that the backend saw.
fn hello(rig: &CompatRig, host: &Host, backend: &Process) -> SocketAddr {
    let test =
        r#"echo -en "PROXY TCP4 1.2.3.4 1.2.3.4 11 11\r\nHello World!" | nc -q3 -v 127.0.0.1 2222"#;
    rig.run(host, test);
    backend.wait_line("the client", |line| {
        let (_, port) = line.split_once("Connection received on 1.2.3.4 ")?;
        crate::harness::addr::from_parts("1.2.3.4", port)
    })
}

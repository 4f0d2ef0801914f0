//! The keeper: the process of a proxy with `--setup-routes` that holds its rules and removes them.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use super::{RoutesRig, assert_as_before, stop};
use crate::harness::lab::{
    Host, assert_contains, assert_fails, assert_succeeds, stdout_text, wait_until,
};
use crate::harness::peername::{BINARY, Peername, words};

/// A service manager sends SIGTERM to every process of the service (systemd.kill(5)), and the proxy must exit first. It sends
/// other signals to every process, too, if it is not told otherwise.
#[test]
fn keeper_ignores_signals() {
    let rig = RoutesRig::new();
    let server = &rig.lab.server;
    let before = server.routing_rules();
    let mut proxy = rig.proxy(8443, &["--setup-routes"]);
    rig.assert_clients_served(8443);
    let with_keeper = server.routing_rules();
    let keeper = keeper_pid(server, &proxy);
    for signal in ["-INT", "-TERM", "-HUP", "-USR1", "-USR2"] {
        server.run("kill", &[signal, &keeper]);
    }
    wait_until("the signals are delivered", || {
        let status = fs::read_to_string(format!("/proc/{keeper}/status"));
        status.is_ok_and(|status| status.contains("ShdPnd:\t0000000000000000\n"))
    });
    assert_eq!(keeper_pid(server, &proxy), keeper);
    assert_as_before(server, &with_keeper);
    stop(&mut proxy);
    assert_as_before(server, &before);
    // The keeper does not outlive the proxy.
    assert!(!Path::new("/proc").join(keeper).exists());
}

#[test]
fn keeper_holds_one_capability() {
    let rig = RoutesRig::new();
    let proxy = rig.proxy(8443, &["--setup-routes"]);
    rig.assert_clients_served(8443);
    let keeper = keeper_pid(&rig.lab.server, &proxy);
    let status = fs::read_to_string(format!("/proc/{keeper}/status")).expect("its status");
    let net_admin = "0000000000001000";
    for (set, bits) in [
        ("CapEff", net_admin),
        ("CapPrm", net_admin),
        // For nft(8).
        ("CapInh", net_admin),
        ("CapBnd", "0000000000000000"),
        ("CapAmb", net_admin),
        ("NoNewPrivs", "1"),
    ] {
        assert_contains(&status, &[&format!("{set}:\t{bits}\n")]);
    }
}

#[test]
fn keeper_and_administrator_do_not_remove_each_others_routes() {
    let rig = RoutesRig::new();
    let server = &rig.lab.server;
    let add = || run(server, "routes add -4 127.0.0.1:9000 -6 [::1]:9000");
    add();
    let permanent = server.routing_rules();
    let mut proxy = rig.proxy(8443, &["--setup-routes"]);
    rig.assert_clients_served(8443);
    let both = server.routing_rules();
    run(server, "routes remove");
    for line in run(server, "routes show").lines() {
        assert!(line.ends_with("  # of a running proxy"), "{line}");
    }
    rig.assert_clients_served(8443);
    add();
    assert_as_before(server, &both);
    stop(&mut proxy);
    assert_as_before(server, &permanent);
}

#[test]
fn rules_of_a_killed_keeper_are_recognized() {
    let rig = RoutesRig::new();
    let server = &rig.lab.server;
    let before = server.routing_rules();
    let assert_leftovers = |line: &str| {
        assert_contains(&stdout_text(&Peername::run(server, &["doctor"])), &[line]);
    };
    let dead = rig.proxy(8443, &["--setup-routes"]);
    rig.assert_clients_served(8443);
    let mut alive = rig.proxy(8444, &["--setup-routes"]);
    rig.assert_clients_served(8444);
    let rule = "2111: from 127.0.0.0/8 iif lo ipproto tcp sport 9000 lookup 21101 proto 211";
    let running = format!("{rule}  # of a running proxy\n");
    assert_contains(&run(server, "routes show"), &[&running]);
    assert_leftovers("ok    leftovers: none");
    kill_with_keeper(server, &dead);
    let shown = run(server, "routes show");
    assert_contains(&shown, &[&format!("{rule}  # left behind\n")]);
    assert_contains(&shown, &["  # of a running proxy\n"]);
    assert_leftovers("warn  leftovers: ");
    assert_contains(&run(server, "routes remove"), &["  # left behind\n"]);
    assert_leftovers("ok    leftovers: none");
    let shown = run(server, "routes show");
    assert!(
        !shown.is_empty() && !shown.contains("left behind"),
        "{shown}"
    );
    // The running keeper may restore its rules. If it does not, it finds nothing to remove at its end, which is not an error.
    run(server, "routes remove --all");
    stop(&mut alive);
    assert_as_before(server, &before);
}

#[test]
fn next_keeper_cleans_its_slot() {
    let rig = RoutesRig::new();
    let server = &rig.lab.server;
    let before = server.routing_rules();
    let dead = rig.proxy(8443, &["--setup-routes"]);
    rig.assert_clients_served(8443);
    kill_with_keeper(server, &dead);
    assert_contains(&run(server, "routes show"), &["from ::1"]);
    let args = words(
        "proxy --setup-routes --listen=10.81.0.1:8444 --target-v4=127.0.0.1:9000 --trust=private",
    );
    let listen = "10.81.0.1:8444".parse().expect("an address");
    let mut next = Peername::start(server, &args, &[listen]);
    wait_until("the first rule is replaced", || {
        let rules = run(server, "routes show");
        rules.contains("lookup 21101 proto 211  # of a running proxy") && !rules.contains("::1")
    });
    stop(&mut next);
    assert_as_before(server, &before);
}

/// Without a keeper the proxy does not start, and reports the cause and the remedies.
#[test]
fn failure_of_the_keeper_is_reported() {
    let host = Host::new();
    let before = host.routing_rules();
    let start = |through: &[&str], target: &str| {
        let line = format!(
            "proxy --target={target} --setup-routes --trust=loopback --listen=127.0.0.1:8443"
        );
        let program = [through, &[BINARY]].concat();
        Peername::run_with_input(&host, &program, &words(&line), "")
    };
    let other_host = "the backend 10.9.0.1:80 is not on this host";
    assert_fails(&start(&[], "10.9.0.1:80"), 1, &[other_host]);
    // Enough for the proxy, but the keeper needs CAP_NET_ADMIN.
    let net_raw = ["setpriv", "--bounding-set=-all,+net_raw", "--inh-caps=-all"];
    let remedies = [
        "RTM_NEWROUTE: Operation not permitted",
        "CAP_NET_ADMIN",
        "; root lacks it here: ",
        "run `peername routes add` once with CAP_NET_ADMIN",
        "without `--setup-routes`",
    ];
    assert_fails(&start(&net_raw, "127.0.0.1:80"), 1, &remedies);
    assert_as_before(&host, &before);
}

fn keeper_pid(server: &Host, proxy: &Peername) -> String {
    let parent = proxy.pid().to_string();
    let pids = server.run("pgrep", &["--parent", &parent, "--full", "routes keep"]);
    pids.trim().to_owned()
}

/// Kills the keeper first, so that the rules stay.
fn kill_with_keeper(server: &Host, proxy: &Peername) {
    let keeper = keeper_pid(server, proxy);
    server.run("kill", &["-KILL", &keeper]);
    proxy.signal(Signal::KILL);
    // A killed keeper holds its slot until it has ended.
    wait_until("the rules are left behind", || {
        run(server, "routes show").contains("# left behind")
    });
}

/// Runs a command that succeeds; returns its standard output.
#[track_caller]
fn run(server: &Host, line: &str) -> String {
    assert_succeeds(&Peername::run(server, &words(line)))
}

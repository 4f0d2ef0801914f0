//! Rules, routes and tables that another program removes while a proxy runs.

use std::process::Command;
use std::time::{Duration, Instant};

use super::RoutesRig;
use crate::harness::admin::{ADMIN, get};
use crate::harness::lab::{Process, wait_until};

#[test]
fn removed_rules_and_routes_are_restored_within_a_second() {
    let rig = RoutesRig::new();
    let server = &rig.lab.server;
    let proxy = rig.proxy(8443, &["--setup-routes"]);
    rig.assert_clients_served(8443);
    let before = server.routing_rules();
    for removal in [
        "ip rule del pref 2111",
        "ip -6 rule del pref 2111",
        "ip route flush table 21101",
        "ip -6 route flush table 21101",
        // The kernel sends no notification for the routes that it removes when a link goes down.
        "ip link set lo down; sleep 0.1; ip link set lo up",
    ] {
        server.run("sh", &["-c", removal]);
        let removed_at = Instant::now();
        wait_until(removal, || server.routing_rules() == before);
        assert!(removed_at.elapsed() < Duration::from_secs(1), "{removal}");
    }
    wait_until("the probe after the loopback interface was down", || {
        rig.is_v4_client_served(8443)
    });
    proxy.wait_logged_parts(&["WARN", "is restored: `2111: from"]);
}

/// Debian's systemd-networkd removes policy rules that are not in its configuration.
#[test]
fn rules_that_networkd_removes_are_restored() {
    let rig = RoutesRig::new();
    let server = &rig.lab.server;
    let proxy = rig.proxy(8443, &["--setup-routes"]);
    rig.assert_clients_served(8443);
    let rules = || server.run("sh", &["-c", "ip rule; ip -6 rule"]);
    let before = rules();
    server.ip("rule add pref 555 from 192.0.2.99 lookup 55");
    let output = server.output(
        Command::new("unshare").args(["--mount", "bash", "-c", NETWORKD]),
        "",
    );
    // The control: networkd has removed a rule that is not in its configuration.
    assert!(!rules().contains("192.0.2.99"), "{output:?}");
    proxy.wait_logged("is restored: `2111: from");
    for rule in before.lines() {
        assert!(rules().contains(rule), "{rule} is not in {}", rules());
    }
    rig.assert_clients_served(8443);
}

/// The keeper backs off from a program that removes the rules again and again, and does not flood the log.
#[test]
fn restoring_the_rules_backs_off() {
    let rig = RoutesRig::new();
    let proxy = rig.proxy(8443, &["--setup-routes"]);
    rig.assert_clients_served(8443);
    let removal = "while :; do ip rule del pref 2111 2>/dev/null; sleep 0.01; done";
    let remover = Process::start(&rig.lab.server, "sh", &["-c", removal]);
    proxy.wait_logged_parts(&["happens repeatedly", "after 1s"]);
    drop(remover);
    let restored = proxy.log().matches("is restored").count();
    assert!((5..=10).contains(&restored), "{}", proxy.log());
    let rule = || rig.lab.server.run("ip", &["rule", "show", "pref", "2111"]);
    wait_until("the rule is restored", || rule().contains("21101"));
    wait_until("clients are served", || rig.is_v4_client_served(8443));
}

/// A rule of another program with a smaller priority is not removed; the log reports it.
#[test]
fn rule_of_another_program_before_ours_is_named() {
    let rig = RoutesRig::new();
    let proxy = rig.proxy(8443, &["--setup-routes"]);
    rig.assert_clients_served(8443);
    let other = "pref 100 from 127.0.0.0/8 iif lo blackhole";
    rig.lab.server.ip(&format!("rule add {other}"));
    proxy.wait_logged("a rule with a smaller priority");
    rig.lab.server.ip(&format!("rule del {other}"));
    wait_until("clients are served", || rig.is_v4_client_served(8443));
}

/// Without a keeper, the proxy itself notices the removal.
#[test]
fn removal_of_permanent_rules_is_noticed_at_once() {
    let rig = RoutesRig::new();
    let server = &rig.lab.server;
    server.ip(PERMANENT_V4);
    server.ip6(PERMANENT_V6);
    let proxy = rig.proxy(8443, &[ADMIN]);
    assert!(rig.is_v4_client_served(8443));
    assert!(get(server, &[], "/readyz").ends_with("200"));
    server.ip("rule del pref 2110");
    let removed_at = Instant::now();
    proxy.wait_logged_parts(&["replies do not come back", "127.0.0.1:9000"]);
    assert!(removed_at.elapsed() < Duration::from_secs(3));
    assert!(get(server, &[], "/readyz").ends_with("503"));
    server.ip("rule add pref 2110 from 127.0.0.0/8 iif lo lookup 21100");
    wait_until("clients are served", || rig.is_v4_client_served(8443));
}

const PERMANENT_V4: &str = "
    rule add pref 2110 from 127.0.0.0/8 iif lo lookup 21100
    route add local 0.0.0.0/0 dev lo table 21100
";
const PERMANENT_V6: &str = "
    rule add pref 2110 from ::1 iif lo lookup 21100
    route add local ::/0 dev lo table 21100
";

/// Runs the real daemon, with a /run of its own. It removes foreign rules when it configures a link that appears.
const NETWORKD: &str = "
    mount -t tmpfs none /run
    mkdir -p /run/systemd/network /run/systemd/netif/links /run/systemd/netif/leases /run/dbus
    printf '%s\n' '[Match]' Name=late0 '[Network]' Address=10.83.0.1/24 LinkLocalAddressing=no \
        > /run/systemd/network/late0.network
    mount -o remount,ro /sys
    chown -R systemd-network: /run/systemd/netif
    (sleep 1; ip link add late0 type veth peer name late1) &
    timeout 4 /lib/systemd/systemd-networkd
    true
";

//! `peername doctor`: each fault is reported with its remedy, and disappears once the remedy is applied.

use std::net::SocketAddr;

use super::{WITHOUT_CAPABILITIES, run, run_as};
use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::datagram::DatagramSocket;
use crate::harness::lab::{Host, Scratch, assert_contains, assert_count};
use crate::harness::peername::BINARY;

/// The lines of one check. A line begins with the verdict, in six columns.
fn check_lines<'a>(report: &'a str, check: &str) -> Vec<&'a str> {
    report
        .lines()
        .filter(|line| line.get(6..).is_some_and(|rest| rest.starts_with(check)))
        .collect()
}

fn backends(host: &Host) -> [Backend; 2] {
    let v6 = "[::1]:443".parse().expect("an address");
    [BACKEND_V4, v6].map(|addr| Backend::listen(host, addr))
}

#[test]
fn unconfigured_host_fails_with_the_command_that_fixes_it() {
    let report = run(&Host::new(), DOCTOR, 3);
    for check in ["routes: ", "self-test: "] {
        let lines = check_lines(&report, check);
        assert_eq!(lines.len(), 2, "{report}");
        for line in lines {
            assert!(line.starts_with("FAIL  "), "{report}");
        }
    }
    let remedies = [
        "`peername routes add --target 127.0.0.1:443`",
        "`peername routes add --target '[::1]:443'`",
    ];
    assert_contains(&report, &remedies);
    for line in report.lines() {
        let verdict = line.get(..6).expect(line);
        assert!(["ok    ", "warn  ", "FAIL  "].contains(&verdict), "{line}");
        // Every fault has a remedy.
        assert!(verdict == "ok    " || line.contains("; "), "{line}");
    }
}

/// With a default route the kernel answers the route lookup for loopback's replies with EINVAL.
#[test]
fn default_route_does_not_change_the_result() {
    let host = Host::new();
    host.ip("link add out type veth peer name far
             addr add 10.82.0.1/24 dev out
             link set out up
             link set far up
             route add default via 10.82.0.2");
    let report = run(&host, "doctor -4 127.0.0.1:443", 3);
    let routes = check_lines(&report, "routes: ").join("\n");
    assert_contains(&routes, &["`peername routes add --target 127.0.0.1:443`"]);
}

#[test]
fn configured_host_passes() {
    let host = Host::new();
    let _backends = backends(&host);
    run(&host, "routes add", 0);
    let report = run(&host, DOCTOR, 0);
    assert!(!report.contains("FAIL"), "{report}");
    let answers = [
        "ok    spoofed connect: 127.0.0.1:443 answers 192.0.2.1",
        "ok    spoofed connect: [::1]:443 answers 2001:db8::1",
    ];
    assert_contains(&report, &answers);
    run(&host, "routes remove", 0);
    run(&host, DOCTOR, 3);
}

/// A missing backend is reported once. The checks that need it have no lines, but those of the path to it do.
#[test]
fn missing_backend_is_one_line() {
    let host = Host::new();
    run(&host, "routes add", 0);
    let report = run(&host, DOCTOR, 3);
    for target in ["127.0.0.1:443", "[::1]:443"] {
        let line = format!("FAIL  backend: {target}: Connection refused");
        assert_eq!(report.matches(&line).count(), 1, "{report}");
    }
    assert_eq!(check_lines(&report, "backend: ").len(), 2, "{report}");
    for check in ["spoofed connect: ", "backend's listener: "] {
        assert_eq!(check_lines(&report, check), [""; 0], "{report}");
    }
    assert_eq!(check_lines(&report, "self-test: ").len(), 2, "{report}");
}

/// Without a backend there is nothing to connect to. An installed peername has a file that names one.
#[test]
fn report_without_a_backend_names_the_option() {
    let hide = "if [ -d /etc/peername ]; then mount -t tmpfs none /etc/peername; fi; exec \"$@\"";
    let program = ["unshare", "--mount", "sh", "-c", hide, "sh", BINARY];
    let report = run_as(&Host::new(), &program, "doctor", 0);
    let named = "warn  backend: none is named, so none is checked; `peername doctor --target";
    assert_contains(&report, &[named]);
}

/// A mode is a word, as in `doctor confinement`, or in the older form an option.
#[test]
fn modes_are_words_or_options() {
    let host = Host::new();
    for mode in ["confinement", "--confinement"] {
        let report = run(&host, &format!("doctor {mode}"), 0);
        assert_eq!(check_lines(&report, "seccomp: ").len(), 1, "{report}");
    }
}

#[test]
fn only_the_given_backend_is_checked() {
    let host = Host::new();
    run(&host, "routes add", 0);
    let _backend = Backend::listen(&host, v4([127, 0, 0, 1], 9000));
    let report = run(&host, "doctor -4 127.0.0.1:9000", 0);
    assert!(!report.contains("[::1]"), "{report}");
}

/// What UDP needs of the host is checked without a listener or backend, too.
#[test]
fn protocol_alone_selects_the_checks_of_the_host() {
    for (protocol, count) in [("tcp", 0), ("both", 1)] {
        let report = run(&Host::new(), &format!("doctor --protocol {protocol}"), 0);
        let lines = check_lines(&report, "--data-path kernel: ");
        assert_eq!(lines.len(), count, "{protocol}: {report}");
    }
}

/// `doctor` validates the file first, and then checks its listeners and backends.
#[test]
fn configuration_file_is_checked_as_a_whole() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let table = "[[listen]]\naddress = [\"127.0.0.1:8443\"]\nprotocol = \"both\"\ntrust = [\"any\"]\n\
        target-v4 = \"127.0.0.1:9000\"\n";
    let command = format!("doctor --config {}", scratch.write("proxy.toml", table));
    run(&host, "routes add", 0);
    let _backend = Backend::listen(&host, v4([127, 0, 0, 1], 9000));
    let _udp_backend = DatagramSocket::bind(&host, v4([127, 0, 0, 1], 9000));
    let report = run(&host, &command, 0);
    let expected = [
        "ok    listener: TCP 127.0.0.1:8443 is free",
        "ok    listener: UDP 127.0.0.1:8443 is free",
        "ok    spoofed connect: 127.0.0.1:9000 answers 192.0.2.1",
        " --data-path kernel: ",
    ];
    assert_contains(&report, &expected);
    scratch.write("proxy.toml", "[[listen]]\ntrsut = 1\naddress = 7\n");
    let report = run(&host, &command, 3);
    assert_count(&report, "FAIL  configuration: ", 2);
}

#[test]
fn backend_on_another_address_of_this_host_is_checked() {
    let host = Host::new();
    host.ip("address add 10.9.0.1/24 dev lo");
    let _backend = Backend::listen(&host, v4([10, 9, 0, 1], 8080));
    let report = run(&host, "doctor -4 10.9.0.1:8080", 3);
    assert_contains(&report, &["`peername routes add --target 10.9.0.1:8080`"]);
    run(&host, "routes add -4 10.9.0.1:8080", 0);
    let report = run(&host, "doctor -4 10.9.0.1:8080", 0);
    let expected = [
        "ok    spoofed connect: 10.9.0.1:8080 answers",
        "a client that connects there directly gets no answer",
    ];
    assert_contains(&report, &expected);
}

#[test]
fn missing_capabilities_are_reported() {
    let host = Host::new();
    let _backends = backends(&host);
    run(&host, "routes add", 0);
    let report = run_as(&host, WITHOUT_CAPABILITIES, DOCTOR, 3);
    let raw = check_lines(&report, "CAP_NET_RAW: ")[0];
    assert_contains(raw, &["CapabilityBoundingSet="]);
    let bind = check_lines(&report, "CAP_NET_BIND_SERVICE: ")[0];
    assert!(bind.starts_with("warn"), "{report}");
}

#[test]
fn sysctls_are_read_from_this_namespace() {
    let host = Host::new();
    let before = run(&host, DOCTOR, 3);
    let settings = [
        (
            "net.ipv4.conf.all.rp_filter",
            "1",
            "warn  net.ipv4.conf.*.rp_filter: all 1",
        ),
        (
            "net.ipv4.conf.lo.route_localnet",
            "1",
            "warn  net.ipv4.conf.*.route_localnet: 1 for lo: 127.0.0.0/8 can be reached from the network; peername needs it on lo \
             only, for `--data-path kernel`; if nothing else needs it: `sysctl -w net.ipv4.conf.lo.route_localnet=0`",
        ),
        (
            "net.ipv4.conf.all.src_valid_mark",
            "1",
            "warn  net.ipv4.conf.all.src_valid_mark: 1",
        ),
        ("net.core.somaxconn", "5", "warn  net.core.somaxconn: 5"),
        ("net.ipv4.ip_forward", "1", "ok    net.ipv4.ip_forward: 1"),
        ("net.ipv6.conf.all.disable_ipv6", "1", "warn  IPv6: "),
    ];
    for (setting, value, line) in settings {
        assert!(!before.contains(line), "{before}");
        host.sysctl(setting, value);
    }
    let after = run(&host, DOCTOR, 3);
    assert_contains(&after, &settings.map(|(_, _, line)| line));
}

#[test]
fn ipv4_backend_is_enough_without_ipv6() {
    let host = Host::new();
    host.sysctl("net.ipv6.conf.all.disable_ipv6", "1");
    let _backend = Backend::listen(&host, BACKEND_V4);
    run(&host, "routes add", 0);
    let report = run(&host, DOCTOR, 0);
    assert_contains(
        &report,
        &["ok    backend: [::1]:443 is left out: this host has no IPv6"],
    );
}

#[test]
fn listeners_are_checked() {
    let host = Host::new();
    let _taken = Backend::listen(&host, v4([127, 0, 0, 1], 7000));
    let report = run(
        &host,
        "doctor -l 127.0.0.1:7000 -l 10.9.9.9:1 -l 127.0.0.1:7001",
        3,
    );
    let expected = [
        "FAIL  listener: TCP 127.0.0.1:7000 is in use by e2e-",
        "FAIL  listener: TCP 10.9.9.9:1: bind(2)",
        "ok    listener: TCP 127.0.0.1:7001 is free",
    ];
    assert_contains(&report, &expected);
}

const BACKEND_V4: SocketAddr = v4([127, 0, 0, 1], 443);
/// The command for the backends of these tests.
const DOCTOR: &str = "doctor --target 127.0.0.1:443 --target [::1]:443";

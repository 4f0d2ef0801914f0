//! `peername doctor`: each fault is reported with its remedy, and disappears once the remedy is applied.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::Stdio;

use anyhow::{Context, Result};
use peername_sys::process::caps::{self, CapabilitySet};

use crate::{in_namespace, ip, peername, run};

/// The lines of one check.
fn lines<'a>(report: &'a str, check: &str) -> Vec<&'a str> {
    let of_check = |line: &&str| line.get(6..).is_some_and(|rest| rest.starts_with(check));
    report.lines().filter(of_check).collect()
}

#[test]
fn unconfigured_host_fails_with_the_command_that_fixes_it() -> Result<()> {
    in_namespace(|| {
        let report = run(DOCTOR, 3)?;
        for check in ["routes: ", "self-test: "] {
            let lines = lines(&report, check);
            assert_eq!(lines.len(), 2, "{report}");
            assert!(
                lines.iter().all(|line| line.starts_with("FAIL  ")),
                "{report}"
            );
        }
        assert!(
            report.contains("`peername routes add --target 127.0.0.1:443`"),
            "{report}"
        );
        assert!(
            report.contains("`peername routes add --target '[::1]:443'`"),
            "{report}"
        );
        Ok(())
    })
}

/// With a default route the kernel answers the route lookup for loopback's replies with EINVAL.
#[test]
fn default_route_does_not_change_the_result() -> Result<()> {
    in_namespace(|| {
        ip("link add out type veth peer name far")?;
        ip("addr add 10.82.0.1/24 dev out")?;
        ip("link set out up")?;
        ip("link set far up")?;
        ip("route add default via 10.82.0.2")?;
        let report = run("doctor -4 127.0.0.1:443", 3)?;
        let routes = lines(&report, "routes: ");
        assert!(
            routes
                .iter()
                .any(|line| line.contains("`peername routes add --target 127.0.0.1:443`")),
            "{report}"
        );
        Ok(())
    })
}

#[test]
fn configured_host_passes() -> Result<()> {
    in_namespace(|| {
        let _backends = (
            TcpListener::bind("127.0.0.1:443")?,
            TcpListener::bind("[::1]:443")?,
        );
        run("routes add", 0)?;
        let report = run(DOCTOR, 0)?;
        assert!(!report.contains("FAIL"), "{report}");
        assert!(
            report.contains("ok    spoofed connect: 127.0.0.1:443 answers 192.0.2.1"),
            "{report}"
        );
        assert!(
            report.contains("ok    spoofed connect: [::1]:443 answers 2001:db8::1"),
            "{report}"
        );
        run("routes remove", 0)?;
        run(DOCTOR, 3)?;
        Ok(())
    })
}

#[test]
fn every_line_has_a_verdict_and_a_remedy() -> Result<()> {
    in_namespace(|| {
        for line in run(DOCTOR, 3)?.lines() {
            let verdict = line.get(..6).context(line.to_owned())?;
            assert!(["ok    ", "warn  ", "FAIL  "].contains(&verdict), "{line}");
            // Every fault has a remedy.
            assert!(verdict == "ok    " || line.contains("; "), "{line}");
        }
        Ok(())
    })
}

/// A backend that is missing is one line, beside those of the path to it.
#[test]
fn missing_backend_is_one_line() -> Result<()> {
    in_namespace(|| {
        run("routes add", 0)?;
        let report = run(DOCTOR, 3)?;
        for target in ["127.0.0.1:443", "[::1]:443"] {
            let line = format!("FAIL  backend: {target}: Connection refused");
            assert!(report.contains(&line), "{report}");
        }
        for check in ["spoofed connect: ", "backend's listener: "] {
            assert_eq!(lines(&report, check), [""; 0], "{report}");
        }
        assert_eq!(lines(&report, "self-test: ").len(), 2, "{report}");
        Ok(())
    })
}

/// Without a backend there is nothing to connect to, and that is said.
#[test]
fn report_without_a_backend_names_the_option() -> Result<()> {
    in_namespace(|| {
        let report = run("doctor", 0)?;
        assert!(
            report.contains(
                "warn  backend: none is named, so none is checked; `peername doctor --target"
            ),
            "{report}"
        );
        Ok(())
    })
}

/// The modes are words; they were options before.
#[test]
fn modes_are_words_or_options() -> Result<()> {
    in_namespace(|| {
        for mode in ["confinement", "--confinement"] {
            let report = run(&format!("doctor {mode}"), 0)?;
            assert_eq!(lines(&report, "seccomp: ").len(), 1, "{report}");
        }
        Ok(())
    })
}

/// Only the backends that are given.
#[test]
fn default_target_is_not_checked_if_another_one_is_given() -> Result<()> {
    in_namespace(|| {
        run("routes add", 0)?;
        let _backend = TcpListener::bind("127.0.0.1:9000")?;
        let report = run("doctor -4 127.0.0.1:9000", 0)?;
        assert!(!report.contains("[::1]"), "{report}");
        Ok(())
    })
}

/// Listeners, backends and marks of the file, which is validated first.
#[test]
fn configuration_file_is_checked_as_a_whole() -> Result<()> {
    in_namespace(|| {
        let path =
            std::env::temp_dir().join(format!("peername-doctor-{}.toml", std::process::id()));
        let command = format!("doctor --config {}", path.display());
        let table = "[[listen]]\naddress = [\"127.0.0.1:8443\"]\nprotocol = \"both\"\ntrust = [\"any\"]\n\
            target-v4 = \"127.0.0.1:9000\"\n";
        std::fs::write(&path, table)?;
        run("routes add", 0)?;
        let _backend = TcpListener::bind("127.0.0.1:9000")?;
        let report = run(&command, 0)?;
        for line in [
            "ok    listener: TCP 127.0.0.1:8443 is free",
            "ok    listener: UDP 127.0.0.1:8443 is free",
            "ok    spoofed connect: 127.0.0.1:9000 answers 192.0.2.1",
            " --data-path kernel: ",
        ] {
            assert!(report.contains(line), "{line}: {report}");
        }
        std::fs::write(&path, "[[listen]]\ntrsut = 1\naddress = 7\n")?;
        let report = run(&command, 3)?;
        assert_eq!(
            report.matches("FAIL  configuration: ").count(),
            2,
            "{report}"
        );
        std::fs::remove_file(&path)?;
        Ok(())
    })
}

#[test]
fn backend_on_another_address_of_this_host_is_checked() -> Result<()> {
    in_namespace(|| {
        ip("address add 10.9.0.1/24 dev lo")?;
        let _backend = TcpListener::bind("10.9.0.1:8080")?;
        let report = run("doctor -4 10.9.0.1:8080", 3)?;
        assert!(
            report.contains("`peername routes add --target 10.9.0.1:8080`"),
            "{report}"
        );
        run("routes add -4 10.9.0.1:8080", 0)?;
        let report = run("doctor -4 10.9.0.1:8080", 0)?;
        assert!(
            report.contains("ok    spoofed connect: 10.9.0.1:8080 answers"),
            "{report}"
        );
        assert!(
            report.contains("a client that connects there directly gets no answer"),
            "{report}"
        );
        Ok(())
    })
}

#[test]
fn missing_capabilities_are_reported() -> Result<()> {
    in_namespace(|| {
        let _backends = (
            TcpListener::bind("127.0.0.1:443")?,
            TcpListener::bind("[::1]:443")?,
        );
        run("routes add", 0)?;
        caps::keep_only(CapabilitySet::empty())?;
        let report = run(DOCTOR, 3)?;
        assert!(
            lines(&report, "CAP_NET_RAW: ")[0].contains("CapabilityBoundingSet="),
            "{report}"
        );
        assert!(
            lines(&report, "CAP_NET_BIND_SERVICE: ")[0].starts_with("warn"),
            "{report}"
        );
        Ok(())
    })
}

#[test]
fn sysctls_are_read_from_this_namespace() -> Result<()> {
    in_namespace(|| {
        let settings = [
            (
                "net/ipv4/conf/all/rp_filter",
                "1",
                "warn  net.ipv4.conf.*.rp_filter: all 1",
            ),
            (
                "net/ipv4/conf/lo/route_localnet",
                "1",
                "warn  net.ipv4.conf.*.route_localnet: 1 for lo",
            ),
            (
                "net/ipv4/conf/all/src_valid_mark",
                "1",
                "warn  net.ipv4.conf.all.src_valid_mark: 1",
            ),
            ("net/core/somaxconn", "5", "warn  net.core.somaxconn: 5"),
            ("net/ipv4/ip_forward", "1", "ok    net.ipv4.ip_forward: 1"),
            ("net/ipv6/conf/all/disable_ipv6", "1", "warn  IPv6: "),
        ];
        let before = run(DOCTOR, 3)?;
        for (setting, value, line) in settings {
            assert!(!before.contains(line), "{before}");
            fs::write(format!("/proc/sys/{setting}"), value)?;
        }
        let after = run(DOCTOR, 3)?;
        for (_, _, line) in settings {
            assert!(after.contains(line), "{line} in {after}");
        }
        Ok(())
    })
}

#[test]
fn ipv4_backend_is_enough_without_ipv6() -> Result<()> {
    in_namespace(|| {
        fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")?;
        let _backend = TcpListener::bind("127.0.0.1:443")?;
        run("routes add", 0)?;
        let report = run(DOCTOR, 0)?;
        assert!(
            report.contains("ok    backend: no [::1]:443 without IPv6"),
            "{report}"
        );
        Ok(())
    })
}

#[test]
fn listeners_are_checked() -> Result<()> {
    in_namespace(|| {
        let _taken = TcpListener::bind("127.0.0.1:7000")?;
        let report = run(
            "doctor -l 127.0.0.1:7000 -l 10.9.9.9:1 -l 127.0.0.1:7001",
            3,
        )?;
        assert!(
            report.contains("FAIL  listener: TCP 127.0.0.1:7000 is in use by routing-"),
            "{report}"
        );
        assert!(
            report.contains("FAIL  listener: TCP 10.9.9.9:1: bind(2)"),
            "{report}"
        );
        assert!(
            report.contains("ok    listener: TCP 127.0.0.1:7001 is free"),
            "{report}"
        );
        Ok(())
    })
}

#[test]
fn leftovers_of_a_killed_keeper_are_reported() -> Result<()> {
    in_namespace(|| {
        let mut keeper = peername("routes keep --target=127.0.0.1:443")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut ready = String::new();
        let stdout = keeper.stdout.take().context("a pipe")?;
        BufReader::new(stdout).read_line(&mut ready)?;
        assert_eq!(ready, "ready\n");
        assert!(run(DOCTOR, 3)?.contains("ok    leftovers: none"));
        keeper.kill()?;
        keeper.wait()?;
        assert!(run(DOCTOR, 3)?.contains("warn  leftovers: "));
        assert!(run("routes remove", 0)?.contains("# left behind"));
        assert!(run(DOCTOR, 3)?.contains("ok    leftovers: none"));
        Ok(())
    })
}

/// With the backends of these tests.
const DOCTOR: &str = "doctor --target 127.0.0.1:443 --target [::1]:443";

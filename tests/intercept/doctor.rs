//! `peername doctor --intercept`: what a forward proxy needs of its host, each fault with its fix.

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Output};

use crate::harness::addr::v4;
use crate::harness::check::service::Opa;
use crate::harness::lab::{Host, Scratch, assert_contains, assert_prints, stdout_text};
use crate::harness::peername::{BINARY, Peername, words};

/// A host with an authority in `ca`, and OPA at [`OPA`].
struct InterceptHost {
    host: Host,
    scratch: Scratch,
    ca: String,
    _opa: Opa,
}

const OPA: SocketAddr = v4([127, 0, 0, 1], 8181);

impl InterceptHost {
    fn new() -> Self {
        let (host, scratch) = (Host::new(), Scratch::new());
        let opa = host.enter(|| Opa::start_at(OPA, "package egress\n\nallow := true\n"));
        let ca = scratch.path_text("ca");
        let prepared = Self {
            host,
            scratch,
            ca,
            _opa: opa,
        };
        assert!(prepared.ca("init", &[]).status.success());
        prepared
    }

    fn ca(&self, action: &str, args: &[&str]) -> Output {
        Peername::run(
            &self.host,
            &[&["ca", action, "--ca", &self.ca], args].concat(),
        )
    }

    /// Runs `doctor --intercept` with these further arguments and variables; asserts the exit code, and that each fault has
    /// a fix. Returns the report.
    #[track_caller]
    fn report(&self, code: i32, args: &[&str], variables: &[(&str, &str)]) -> String {
        let mut command = Command::new(BINARY);
        command
            .args(["doctor", "--intercept", "--ca", &self.ca])
            .args(["--check", "opa+http://127.0.0.1:8181/v1/data/egress/allow"])
            .args(["--resolve", "localhost"])
            .args(args)
            .env_remove("SSL_CERT_FILE")
            .env_remove("SSL_CERT_DIR")
            .envs(variables.iter().copied());
        let output = self.host.output(&mut command, "");
        let report = stdout_text(&output);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{report}{:?}",
            output.stderr
        );
        for line in report.lines() {
            let is_fine = line.starts_with("ok    ");
            let has_fix = ["warn  ", "FAIL  "].contains(&line.get(..6).unwrap_or_default())
                && line.contains("; ");
            assert!(is_fine || has_fix, "{line}");
        }
        report
    }

    /// Replaces the authority with one that has expired.
    fn expire(&self) {
        let pem = format!("{}/authority.pem", self.ca);
        self.host.run("python3", &["-c", EXPIRED, &pem]);
    }
}

/// The report's line about this check.
#[track_caller]
fn report_line<'r>(report: &'r str, check: &str) -> &'r str {
    let mut lines = report.lines();
    let line = lines.find(|line| line.get(6..).is_some_and(|rest| rest.starts_with(check)));
    line.unwrap_or_else(|| panic!("no {check} in {report}"))
}

#[test]
fn complete_setup_passes() {
    let setup = InterceptHost::new();
    assert!(setup.ca("env", &[]).status.success());
    let bundle = format!("{}/bundle.pem", setup.ca);
    let report = setup.report(0, &[], &[("SSL_CERT_FILE", &bundle)]);
    for (check, what) in [
        ("authority: ", "valid until "),
        ("trust in the authority: ", &bundle),
        ("origins' authorities: ", "trusted"),
        (
            "check service: ",
            "http://127.0.0.1:8181/v1/data/egress/allow accepts connections",
        ),
        ("name resolution: ", "localhost is 127.0.0.1"),
        ("listener: ", "TCP 127.0.0.1:8080 is free"),
    ] {
        let line = report_line(&report, check);
        assert!(line.starts_with("ok    ") && line.contains(what), "{line}");
    }
    // Requirements of `proxy` alone do not matter here.
    assert!(
        !report.contains("CAP_NET_RAW") && !report.contains("backend"),
        "{report}"
    );
}

#[test]
fn authority_that_this_host_does_not_trust_is_a_warning_with_both_commands() {
    let setup = InterceptHost::new();
    let report = setup.report(0, &[], &[]);
    let line = report_line(&report, "trust in the authority: ");
    assert!(line.starts_with("warn  "), "{line}");
    let ca = &setup.ca;
    assert_contains(line, &[&format!("peername ca env --ca {ca}")]);
    assert_contains(line, &[&format!("peername ca export --ca {ca}")]);
    // A bundle that was written before the authority was rotated.
    assert!(setup.ca("env", &[]).status.success() && setup.ca("rotate", &[]).status.success());
    let bundle = format!("{ca}/bundle.pem");
    let report = setup.report(0, &[], &[("SSL_CERT_FILE", &bundle)]);
    let line = report_line(&report, "trust in the authority: ");
    assert!(
        line.starts_with("warn  ") && line.contains(&bundle),
        "{line}"
    );
}

#[test]
fn authority_that_is_missing_unreadable_or_expired_fails_with_the_command_that_mends_it() {
    let setup = InterceptHost::new();
    let ca = setup.ca.clone();
    let fails = |fix: String| {
        let report = setup.report(3, &[], &[]);
        let line = report_line(&report, "authority: ");
        assert!(
            line.starts_with("FAIL  ") && line.contains(&fix),
            "{fix}: {line}"
        );
        assert!(!line.contains("see docs"), "{line}");
        // The other checks run all the same.
        assert!(
            report_line(&report, "check service: ").starts_with("ok"),
            "{report}"
        );
    };
    setup
        .host
        .run("chmod", &["644", &format!("{ca}/authority.pem")]);
    fails(format!(": run `chmod 600 {ca}/authority.pem`"));
    setup
        .host
        .run("chmod", &["600", &format!("{ca}/authority.pem")]);
    setup.expire();
    fails(format!(
        "has expired; replace it with `peername ca rotate --ca {ca}`"
    ));
    assert!(setup.ca("rotate", &[]).status.success());
    let report = setup.report(0, &[], &[]);
    assert!(
        report_line(&report, "authority: ").starts_with("ok"),
        "{report}"
    );
    fs::remove_dir_all(&ca).expect("rm -r");
    fails(format!("make one with `peername ca init --ca {ca}`"));
}

#[test]
fn authority_that_expires_within_two_weeks_is_a_warning() {
    let setup = InterceptHost::new();
    fs::remove_dir_all(&setup.ca).expect("rm -r");
    assert!(setup.ca("init", &["--days", "10"]).status.success());
    let report = setup.report(0, &[], &[]);
    let line = report_line(&report, "authority: ");
    let fix = format!("`peername ca rotate --ca {}`", setup.ca);
    assert!(line.starts_with("warn  ") && line.contains(&fix), "{line}");
}

#[test]
fn check_that_does_not_answer_and_name_that_does_not_resolve_fail() {
    let setup = InterceptHost::new();
    let report = setup.report(3, &["--check", "grpc://127.0.0.1:9"], &[]);
    let line = report_line(&report, "check service: ");
    assert!(
        line.starts_with("FAIL  ") && line.contains("127.0.0.1:9"),
        "{line}"
    );
    let report = setup.report(3, &["--resolve", "no.such.invalid"], &[]);
    let line = report_line(&report, "name resolution: no.such.invalid");
    assert!(
        line.starts_with("FAIL  ") && line.contains("getent hosts no.such.invalid"),
        "{line}"
    );
}

/// The listeners, the authority and each check service of the table are checked; errors in the file are reported.
#[test]
fn table_of_a_file_is_checked() {
    let setup = InterceptHost::new();
    let report = |code: i32, keys: &str| {
        let table = format!(
            "[intercept]\nca = \"{}\"\nlisten = \"127.0.0.1:8090\"\n{keys}\n",
            setup.ca
        );
        let file = setup.scratch.write("intercept.toml", &table);
        let args = words("doctor intercept --resolve localhost --config");
        let output = Peername::run(&setup.host, &[&args[..], &[&file]].concat());
        let report = stdout_text(&output);
        assert_eq!(output.status.code(), Some(code), "{report}");
        report
    };
    let opa = "opa+http://127.0.0.1:8181/v1/data/egress/allow";
    assert_contains(
        &report(3, &format!("check = [\"{opa}\", \"grpc://127.0.0.1:9\"]")),
        &[
            "ok    configuration: ",
            "ok    authority: ",
            &format!("ok    check service: {opa} accepts connections"),
            "FAIL  check service: grpc://127.0.0.1:9: ",
            "name the right one with `check`;",
            "ok    listener: TCP 127.0.0.1:8090 is free",
        ],
    );
    for (code, keys, line) in [
        (
            0,
            "rules = [\"allow a.test\"]",
            "ok    check service: none; the rules ",
        ),
        (0, "", "warn  check service: none, and no rules"),
        (3, "chek = 1", "line 4, chek: "),
        (
            3,
            "extra-ca = [\"/nonexistent.pem\"]",
            "FAIL  origins' authorities: --extra-ca /nonexistent.pem: ",
        ),
    ] {
        assert_contains(&report(code, keys), &[line]);
    }
}

#[test]
fn doctor_jail_runs_a_program_in_a_jail() {
    let host = Host::new();
    let output = Peername::run(&host, &["doctor", "jail"]);
    assert_prints(&output, "ok    jail: a program runs in it\n");
    for limit in [
        "max_user_namespaces",
        "max_net_namespaces",
        "max_mnt_namespaces",
    ] {
        let forbid = format!("echo 0 >/proc/sys/user/{limit}; exec {BINARY} doctor jail");
        let through = ["unshare", "--user", "--map-root-user", "sh", "-c", &forbid];
        let output = Peername::run_with_input(&host, &through, &[], "");
        let report = stdout_text(&output);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let fix = format!("user.{limit} is 0: `sudo sysctl -w user.{limit}=10000`");
        assert_contains(&report, &["FAIL  jail: ", &fix, "docs/jail.md"]);
    }
}

/// In a jail, another one has no mediator.
#[test]
fn doctor_jail_warns_where_denials_can_not_be_reported() {
    let host = Host::new();
    let jail = ["jail", "-q", "--allow-mounts", "--allow=any", "--"];
    let output = Peername::run(&host, &[&jail[..], &[BINARY, "doctor", "jail"]].concat());
    let report = stdout_text(&output);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_contains(
        &report,
        &[
            "warn  jail: ",
            "supervises system calls already",
            "run it outside of a jail or container that supervises system calls",
            "elsewhere try again when the host is less busy",
        ],
    );
}

#[test]
fn options_of_another_mode_are_wrong_usage() {
    let host = Host::new();
    for args in [
        &["doctor", "--intercept", "--target-v4=127.0.0.1:80"][..],
        &["doctor", "--ca=/tmp"],
        &["doctor", "--check=grpc://127.0.0.1:9"],
        &["doctor", "intercept", "--config=x", "--check-ca=y"],
    ] {
        let output = Peername::run(&host, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
    }
}

/// Writes an authority as `ca init` does, valid from 400 days ago to 10 days ago.
const EXPIRED: &str = include_str!("doctor/expired.py");

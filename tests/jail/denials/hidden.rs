//! Denials that a program could keep from the report.

use std::thread;

use serde_json::Value;

use super::own_lines;
use crate::harness::addr::v4;
use crate::harness::check::service::Service;
use crate::harness::lab::{assert_contains, json_lines, stderr_text, stdout_text};
use crate::harness::peername::{USERS, User};
use crate::harness::rig::jail::JailRig;
use crate::jail::wait_interceptor_exit;

/// The destinations of the lines about denials, each with the number of denials.
fn denied(stderr: &[u8]) -> Vec<String> {
    let mut denied: Vec<_> = own_lines(stderr)
        .iter()
        .filter_map(|line| line.strip_prefix("peername: denied: "))
        .map(|line| line.split(": ").next().unwrap_or_default().to_owned())
        .collect();
    denied.sort();
    denied
}

#[test]
fn refused_ports_are_denied_although_the_socket_drops_the_refusal() {
    let rig = JailRig::new();
    let program = ["/usr/bin/python3", "-c", DROPPED_REFUSALS];
    for user in USERS {
        let output = rig.run_program(user, &["--fail-on-deny", "--allow=a.test"], &program);
        let expected = [
            "203.0.113.5:9001, once",
            "203.0.113.5:9004, once",
            "203.0.113.5:9005, once",
            "[2001:db8::5]:9003, once",
        ];
        assert_eq!(denied(&output.stderr), expected, "{user:?}: {output:?}");
        assert_eq!(output.status.code(), Some(122), "{user:?}");
    }
}

/// A connection waits until a server of the program, whose accept backlog is full, accepts another one.
#[test]
fn connections_to_a_busy_server_of_the_program_are_no_denials() {
    let rig = JailRig::new();
    let program = ["/usr/bin/python3", "-c", BUSY_SERVER];
    for user in USERS {
        let output = rig.run_program(user, &["--fail-on-deny", "--allow=a.test"], &program);
        let made = "made 10.1.2.3\nmade 2001:db8::7\n";
        assert_eq!(stdout_text(&output), made, "{user:?}: {output:?}");
        assert_eq!(denied(&output.stderr), [""; 0], "{user:?}");
        assert_eq!(output.status.code(), Some(0), "{user:?}: {output:?}");
    }
}

/// Each request is for a host of its own, by a direct connection or through one to a.test, which takes it for a proxy.
#[test]
fn malformed_requests_to_denied_hosts_are_denied() {
    let rig = JailRig::new();
    let program = ["/usr/bin/python3", "-c", MALFORMED_REQUESTS];
    let output = rig.run_program(
        User::Nobody,
        &["--fail-on-deny", "--allow=a.test"],
        &program,
    );
    let tried = stdout_text(&output);
    let mut expected: Vec<_> = tried.lines().map(|to| format!("{to}, once")).collect();
    expected.sort();
    assert_eq!(expected.len(), 17, "{output:?}");
    assert_eq!(denied(&output.stderr), expected, "{output:?}");
    assert_eq!(output.status.code(), Some(122));
}

/// The denied host is the last of many that need a certificate, and gets none.
#[test]
fn denied_host_is_reported_although_certificates_are_limited() {
    let rig = JailRig::new();
    let log = rig.scratch().path_text("log");
    let options = [
        "--fail-on-deny",
        "--allow=*.a.test",
        "--certificates-per-client=1",
        "--log",
        &log,
    ];
    let program = ["/usr/bin/python3", "-c", MANY_NAMES];
    let output = rig.run_program(User::Nobody, &options, &program);
    let denied = denied(&output.stderr);
    assert!(
        denied.iter().any(|to| to == "b.test:443, 4 times"),
        "{output:?}"
    );
    assert_eq!(output.status.code(), Some(122), "{output:?}");
    wait_interceptor_exit(&rig);
    let lines = json_lines(&rig.scratch().read("log"));
    let is_limited = |line: &Value| {
        line["host"] == "b.test"
            && line["decision"] == "denied"
            && line["code"] == "too_many_certificates"
    };
    assert!(lines.iter().any(is_limited), "{lines:?}");
}

/// The jail is one client, which may have all connections that the descriptors allow.
#[test]
fn idle_connections_to_an_allowed_host_hide_no_denial() {
    let rig = JailRig::new();
    let jail = rig.scratch().path_text("peername");
    let script = rig.scratch().write("many_connections.py", MANY_CONNECTIONS);
    let line = format!(
        "exec prlimit --nofile=1024:1024 {jail} jail --fail-on-deny --allow=a.test -- /usr/bin/python3 {script}"
    );
    let output = rig.run_outside(User::Root, &line);
    assert_eq!(stdout_text(&output), "403\n403\n403\n", "{output:?}");
    assert_eq!(denied(&output.stderr), ["b.test:80, 3 times"]);
    assert_eq!(output.status.code(), Some(122));
}

/// A process that the program leaves behind has sent nothing after the handshake when the drain cuts its connection.
#[test]
fn connection_that_is_unused_at_the_exit_is_denied() {
    let rig = JailRig::new();
    let ready = rig.scratch().path_text("ready");
    let script = format!(
        "/usr/bin/python3 -c '{UNUSED_CONNECTION}' {ready} >/dev/null 2>&1 &
         until [ -e {ready} ]; do sleep 0.05; done"
    );
    let output = rig.run(User::Root, &["--fail-on-deny", "--allow=a.test"], &script);
    assert_eq!(denied(&output.stderr), ["b.test:443, once"], "{output:?}");
    assert_eq!(output.status.code(), Some(122));
}

/// The check service does not answer before the drain cuts the request of a process that the program has left behind.
#[test]
fn request_that_is_cut_before_its_check_is_not_known() {
    let rig = JailRig::new();
    let host = &rig.stage.lab.balancer;
    let mut check = host.enter(|| Service::forward_auth(v4([127, 0, 0, 1], 9191)));
    check.set_answer(r#"{"status": 200, "headers": [], "body": "", "delay": 60}"#);
    let [log, asked] = ["log", "asked"].map(|name| rig.scratch().path_text(name));
    let options = [
        "--fail-on-deny",
        "--check=http://127.0.0.1:9191/",
        "--check-timeout=30s",
        "--log",
        &log,
    ];
    let script = format!(
        "curl -s http://a.test/ >/dev/null 2>&1 & until [ -e {asked} ]; do sleep 0.05; done"
    );
    let output = thread::scope(|scope| {
        let scratch = rig.scratch();
        let asking = scope.spawn(move || {
            check.next_request();
            scratch.write("asked", "");
            check
        });
        let output = rig.run(User::Root, &options, &script);
        let _check = asking.join().expect("a request");
        output
    });
    let unknown = "peername: denied: maybe further connections, which are not known: 1 were closed";
    assert_contains(&stderr_text(&output), &[unknown]);
    assert_eq!(output.status.code(), Some(122), "{output:?}");
    wait_interceptor_exit(&rig);
    let lines = json_lines(&rig.scratch().read("log"));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(
        [&lines[0]["host"], &lines[0]["decision"], &lines[0]["how"]],
        ["a.test", "left", "drain"]
    );
}

const BUSY_SERVER: &str = include_str!("busy_server.py");
const MALFORMED_REQUESTS: &str = include_str!("malformed_requests.py");
const MANY_CONNECTIONS: &str = include_str!("many_connections.py");
const MANY_NAMES: &str = include_str!("many_names.py");
const UNUSED_CONNECTION: &str = include_str!("unused_connection.py");
const DROPPED_REFUSALS: &str = include_str!("dropped_refusals.py");

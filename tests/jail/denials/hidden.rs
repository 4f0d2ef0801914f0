//! Denials that a program could keep from the report.

use super::own_lines;
use crate::harness::lab::stdout_text;
use crate::harness::rig::jail::{JailRig, USERS, User};

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
            "203.0.113.5:9002, once",
            "203.0.113.5:9004, once",
            "203.0.113.5:9005, once",
            "[2001:db8::5]:9003, once",
        ];
        assert_eq!(denied(&output.stderr), expected, "{user:?}: {output:?}");
        assert_eq!(output.status.code(), Some(122), "{user:?}");
    }
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

const MANY_CONNECTIONS: &str = include_str!("many_connections.py");
const DROPPED_REFUSALS: &str = include_str!("dropped_refusals.py");

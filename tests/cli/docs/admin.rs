//! docs/admin.md: its requests, over both kinds of socket.

use super::follow::{shell, start};
use crate::harness::lab::{Host, Scratch, assert_contains};
use crate::harness::page::Page;

const PAGE: Page = Page::new(include_str!("../../../docs/admin.md"));

#[test]
fn requests_of_the_page_are_answered() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let here = |command: &str| {
        let command = command.replace("/run/peername", scratch.path_text("").trim_end_matches('/'));
        command.replace("curl ", "curl -sS ")
    };
    let commands = PAGE.commands();
    let options: Vec<_> = commands
        .iter()
        .filter_map(|line| line.strip_prefix("peername proxy … "))
        .map(here)
        .collect();
    assert_eq!(options.len(), 2);
    let _proxy = start(
        &host,
        &[],
        &format!(
            "peername proxy --listen 127.0.0.1:8443 --target 127.0.0.1:9000 --trust loopback --setup-routes {}",
            options.join(" ")
        ),
    );
    let answers: Vec<String> = commands
        .iter()
        .filter(|line| line.starts_with("curl ") || line.starts_with("peername top"))
        .map(|line| shell(&host, &here(line)))
        .collect();
    let [metrics, ready, top, connections, delete, level] = &answers[..] else {
        panic!("six requests: {answers:?}");
    };
    assert_contains(metrics, &["peername_connections_active 0"]);
    assert_eq!((&**ready, &**connections), ("ready\n", ""));
    assert_contains(top, &["peername"]);
    assert_contains(delete, &["no connection has this id"]);
    assert_contains(level, &["debug"]);
    let status = shell(&host, "curl -sS http://127.0.0.1:9100/status");
    let fields = PAGE
        .section("### `/status`")
        .text()
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    for name in fields {
        assert_contains(&status, &[&format!("\"{name}\":")]);
    }
}

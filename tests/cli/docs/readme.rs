//! The README's three terminals, word for word.

use crate::harness::lab::{Host, Process};
use crate::harness::peername::BINARY;

#[test]
fn readmes_three_terminals_show_the_client() {
    let [backend, proxy, balancer] = commands();
    let host = Host::new();
    host.ip("link set lo up");
    let shell = |command: &str| Process::start(&host, "bash", &["-c", command]);
    let backend = shell(&backend);
    backend.wait_line("the backend listens", |line| {
        line.contains("Listening on").then_some(())
    });
    let proxy = shell(&proxy.replace("sudo target/release/peername", BINARY));
    proxy.wait_line("the proxy listens", |line| {
        line.contains("listening").then_some(())
    });
    let _balancer = shell(&balancer);
    backend.wait_line("the backend saw the client", |line| {
        line.contains("Connection received on 203.0.113.7 56324")
            .then_some(())
    });
    backend.wait_line("the request", |line| (line == "hello").then_some(()));
}

/// The indented commands of the section, continued lines joined.
fn commands() -> [String; 3] {
    let readme = include_str!("../../../README.md");
    let (_, rest) = readme
        .split_once("in three terminals")
        .expect("the section");
    let (section, _) = rest.split_once("\n## ").expect("its end");
    let joined = section.replace("\\\n", "");
    let command = |start: &str| {
        let line = joined
            .lines()
            .find(|line| line.trim_start().starts_with(start));
        line.unwrap_or_else(|| panic!("no command starts with {start}"))
            .trim()
            .to_owned()
    };
    ["nc -kvnl", "sudo target/release/peername proxy", "printf"].map(command)
}

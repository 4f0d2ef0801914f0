//! The README's commands, word for word: the three terminals, and the jail with an origin of the test's own.

use crate::harness::lab::{Host, Process, assert_contains};
use crate::harness::peername::BINARY;
use crate::harness::rig::jail::{JailRig, User};

#[test]
fn readmes_three_terminals_show_the_client() {
    let [backend, proxy, balancer] = commands();
    let host = Host::new();
    host.ip("link set lo up");
    let shell = |command: &str| Process::start(&host, "bash", &["-c", command]);
    let backend = shell(&backend);
    backend.wait_logged("Listening on");
    let proxy = shell(&proxy.replace("sudo target/release/peername", BINARY));
    proxy.wait_logged("listening");
    let _balancer = shell(&balancer);
    backend.wait_logged("Connection received on 203.0.113.7 56324");
    backend.wait_printed("hello");
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

#[test]
fn readmes_jail_lets_one_request_out() {
    let rig = JailRig::new();
    let (printed, errors) = run_jail(&rig, "jail --allow any --log");
    assert!(printed.starts_with("GET a.test "), "{printed}");
    assert_contains(&printed, &["destination_metadata"]);
    assert!(
        printed.trim_end().ends_with('}'),
        "nothing after the page: {printed}"
    );
    let denied = "denied: a.test:25, 2 times: --allow a.test:25";
    assert_contains(&errors, &["port 25", denied]);
    let log = rig.scratch().read("requests.log");
    assert_contains(&log, &["\"path\":\"/echo\""]);
}

#[test]
fn readmes_list_allows_one_host_and_denies_the_other() {
    let rig = JailRig::new();
    let (printed, errors) = run_jail(&rig, "jail --allow example.com");
    let (first, second) = printed.split_once('\n').expect("two responses");
    assert!(first.starts_with("GET a.test "), "{printed}");
    assert!(
        second.contains("\"code\":\"denied\"") && second.contains("no rule allows it"),
        "{printed}"
    );
    let denied = "peername: denied: b.test:443, once: --allow b.test allows it\n";
    assert_eq!(errors, denied);
}

/// Runs the README's command with these words, with the test's origins in place of the public ones. Returns what it printed on
/// standard output and standard error.
fn run_jail(rig: &JailRig, words: &str) -> (String, String) {
    let readme = include_str!("../../../README.md");
    let (_, rest) = readme
        .split_once("## A program whose only way out is checked")
        .expect("the section");
    let command: Vec<_> = rest
        .lines()
        .skip_while(|line| !line.contains(words))
        .take_while(|line| line.starts_with("    "))
        .collect();
    let [root, log] = ["root.pem", "requests.log"].map(|name| rig.scratch().path_text(name));
    let options = format!(
        "{} jail --extra-ca {root} --allow-destination 10.81.0.0/24",
        rig.scratch().path_text("peername")
    );
    let command = command
        .join("\n")
        .replace("target/release/peername jail", &options)
        .replace("requests.log", &log)
        .replace("https://example.com/", "https://a.test/echo")
        .replace("https://example.org/", "https://b.test/echo")
        .replace("example.com", "a.test");
    let output = rig.run_outside(User::Nobody, &command);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (text(output.stdout), text(output.stderr))
}

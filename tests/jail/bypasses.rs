//! Ways out of the jail, each of which must fail closed: the attempt reports failure, and no process outside notices it. The
//! same attempt outside of a jail, where this kernel allows it, succeeds: so each can fail its test.
//!
//! The list is the table of docs/jail.md.

mod attempts;
mod httpjail;

use std::collections::BTreeSet;
use std::process::Output;

use crate::harness::lab::{Process, wait_for};
use crate::harness::rig::jail::{JailRig, USERS, User};
use attempts::{Attempt, Control, PRELUDE};

/// Processes outside that report every contact in a line: on the origin's host, and on the jail's own as the same user.
struct Canaries {
    remote: Process,
    local: Process,
}

impl Canaries {
    fn start(rig: &JailRig, user: User) -> Self {
        let remote = rig.scratch().write("remote.py", REMOTE);
        let remote = Process::start(&rig.stage.lab.server, "/usr/bin/python3", &["-u", &remote]);
        let local = rig.scratch().write("local.py", LOCAL);
        let path = rig.scratch().path_text(&format!("canary-{user:?}"));
        let local = rig.start_outside(user, &["/usr/bin/python3", "-u", &local, &path]);
        let canaries = Self { remote, local };
        wait_for("the canaries", || {
            let ready = |process: &Process| process.log().contains("ready");
            (ready(&canaries.remote) && ready(&canaries.local)).then_some(())
        });
        canaries
    }

    /// What they have noticed so far.
    fn contacts(&self) -> Vec<String> {
        let logs = [self.remote.log(), self.local.log()];
        let lines = logs.iter().flat_map(|log| log.lines());
        lines
            .filter(|line| *line != "ready")
            .map(str::to_owned)
            .collect()
    }
}

struct Range {
    rig: JailRig,
    canaries: Canaries,
    user: User,
    check: String,
    _check: Process,
}

impl Range {
    fn new(user: User) -> Self {
        let rig = JailRig::new();
        std::fs::create_dir(rig.scratch().path("hidden")).expect("a directory");
        rig.scratch().write("hidden/file", "");
        let (_check, check) = rig.start_check(&["a.test"]);
        let canaries = Canaries::start(&rig, user);
        Self {
            rig,
            canaries,
            user,
            check,
            _check,
        }
    }

    fn script(&self, attempt: &Attempt) -> String {
        let python = format!("{PRELUDE}\n{}", attempt.python);
        let name = format!(
            "attempt-{}.py",
            attempt
                .name
                .replace(|c: char| !c.is_ascii_alphanumeric(), "-")
        );
        let path = self.rig.scratch().write(&name, &python);
        let canary = self
            .rig
            .scratch()
            .path_text(&format!("canary-{:?}", self.user));
        let victim = self.canaries.local.pid();
        format!("exec env CANARY={canary} VICTIM={victim} timeout 20 /usr/bin/python3 {path}")
    }

    fn inside(&self, attempt: &Attempt) -> Output {
        let hide = self.rig.scratch().path_text("hidden");
        let options = [self.check.as_str(), "--hide", &hide];
        let script = format!("export PEERNAME_JAIL_TEST=1; {}", self.script(attempt));
        self.rig.run(self.user, &options, &script)
    }
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Every attempt inside of a jail, as root and as an ordinary user.
#[test]
fn no_attempt_gets_out() {
    for user in USERS {
        let range = Range::new(user);
        let seen_by_origin = range.rig.scratch().read("access.log");
        for attempt in attempts::all().filter(|attempt| attempt.applies_to(user)) {
            let output = range.inside(attempt);
            let text = printed(&output);
            assert!(
                (text.contains("closed") || text.contains("skipped")) && !text.contains("OUT"),
                "{}, {user:?}: {output:?}",
                attempt.name
            );
            let contacts = range.canaries.contacts();
            assert!(
                contacts.is_empty(),
                "{}, {user:?}: {contacts:?}",
                attempt.name
            );
        }
        assert_eq!(range.rig.scratch().read("access.log"), seen_by_origin);
    }
}

/// The same attempts without a jail succeed, where they can at all: what the test above asserts can be false.
#[test]
fn attempts_succeed_without_a_jail() {
    let range = Range::new(User::Root);
    let can = attempts::all().filter(|attempt| attempt.control == Control::Succeeds);
    let failed = can.filter_map(|attempt| {
        let output = range.rig.run_outside(User::Root, &range.script(attempt));
        (!printed(&output).contains("OUT")).then_some((attempt.name, output))
    });
    let failed: Vec<_> = failed.collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(
        range.canaries.contacts().len() > 10,
        "{:?}",
        range.canaries.contacts()
    );
}

#[test]
fn page_lists_every_attempt() {
    let page = include_str!("../../docs/jail.md");
    let (_, rest) = page
        .split_once("## Bypasses that were tried")
        .expect("the section");
    let section = rest.split("\n## ").next().unwrap_or(rest);
    let listed: BTreeSet<_> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .filter(|name| *name != "attempt")
        .collect();
    let tried: BTreeSet<_> = attempts::all().map(|attempt| attempt.name).collect();
    assert_eq!(listed, tried);
    assert!(tried.len() >= 30);
}

/// TCP, UDP and ICMP on the origin's host, IPv4 and IPv6.
const REMOTE: &str = r#"
import socket, threading

def tcp(family, address, port):
    server = socket.create_server((address, port), family=family)
    while True:
        connection, _ = server.accept()
        print("tcp", port, flush=True)
        connection.settimeout(1)
        try:
            connection.recv(2000)
            connection.sendall(b"hello")
        except OSError:
            pass
        connection.close()

def udp(family, address, port):
    server = socket.socket(family, socket.SOCK_DGRAM)
    server.bind((address, port))
    while True:
        data, peer = server.recvfrom(2000)
        print("udp", port, flush=True)
        server.sendto(data, peer)

def icmp():
    server = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    while True:
        packet, _ = server.recvfrom(2000)
        if packet[20] == 8:
            print("icmp", flush=True)

threads = [(icmp,)]
for family, address in [(socket.AF_INET, "10.81.0.1"), (socket.AF_INET6, "fd81::1")]:
    threads += [(tcp, family, address, port) for port in (53, 853, 3128, 7000)]
    threads += [(udp, family, address, port) for port in (53, 443, 7000)]
# On every address: broadcasts, too.
threads.append((udp, socket.AF_INET, "", 7008))
for function, *arguments in threads:
    threading.Thread(target=function, args=arguments).start()
print("ready", flush=True)
"#;

/// Unix sockets with an abstract name and with a path, and TCP on loopback, on the jail's own host.
const LOCAL: &str = r#"
import os, socket, sys, threading

def serve(server, name):
    while True:
        connection, _ = server.accept()
        print(name, flush=True)
        connection.sendall(b"hello")
        connection.close()

def unix(address):
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    return server

path = unix(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
abstract = unix("\0peername-canary")
loopback = socket.create_server(("127.0.0.1", 7001))
for server, name in [(path, "path"), (abstract, "abstract"), (loopback, "loopback")]:
    threading.Thread(target=serve, args=(server, name)).start()
print("ready", flush=True)
"#;

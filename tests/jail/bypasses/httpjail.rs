//! The same attempts in httpjail, for the comparison in docs/jail-attempts.md (`make bench-jail-bypasses`).

use std::process::Output;

use super::attempts::{self, Attempt};
use super::{BypassRig, User};
use crate::harness::lab::stdout_text;

/// Prints for each attempt what it reported, and whether a canary or the origin noticed it. The reader has to judge attempts
/// that report success and were not noticed: some leave no trace, such as typing into a terminal, and some need `--hide`, which
/// only `peername jail` has.
#[test]
#[ignore = "a comparison, for docs/jail-attempts.md: needs httpjail"]
fn attempts_in_httpjail() {
    let httpjail = std::env::var("HTTPJAIL").expect("HTTPJAIL is the path of the binary");
    let bypass = BypassRig::new(User::Nobody);
    bypass.rig.scratch().write("rule.py", RULE);

    let allowed = bypass.run_in_httpjail(&httpjail, "curl -sS http://a.test/echo");
    assert!(stdout_text(&allowed).contains("GET"), "{allowed:?}");
    let denied = bypass.run_in_httpjail(&httpjail, "curl -sS http://b.test/echo");
    assert!(
        stdout_text(&denied).contains("blocked by httpjail"),
        "{denied:?}"
    );

    for attempt in attempts::all().filter(|attempt| attempt.applies_to(User::Nobody)) {
        let contacts_before = bypass.canaries.contacts().len();
        let requests_before = bypass.rig.scratch().read("access.log").len();
        let output = bypass.run_in_httpjail(&httpjail, &bypass.script(&attempt));
        let contacts = bypass.canaries.contacts().split_off(contacts_before);
        let requests = bypass.rig.scratch().read("access.log");
        let mut requests = requests[requests_before..].lines();
        // Requests to the allowed host are no way out.
        let request = requests.find(|line| !line.contains(" a.test "));
        print_result(&attempt, &output, &contacts, request);
    }
}

fn print_result(attempt: &Attempt, output: &Output, contacts: &[String], request: Option<&str>) {
    let text = stdout_text(output);
    // The scripts expect the error messages of `peername jail`.
    let is_refused = REFUSALS.iter().any(|refusal| text.contains(refusal));
    let verdict = match text.contains("OUT") && !is_refused {
        _ if !contacts.is_empty() || request.is_some() => "noticed outside",
        true => "unnoticed",
        false => "closed",
    };
    println!("{verdict:16} {}", attempt.name);
    if verdict != "closed" {
        println!(
            "                 {:?}, {contacts:?}, {request:?}",
            text.trim()
        );
    }
}

impl BypassRig {
    /// Runs a shell script in httpjail, as sudo of the ordinary user would start it. Only `a.test` is allowed, by a line
    /// processor: each build of httpjail has this engine. Its files are in file systems that end with it.
    fn run_in_httpjail(&self, httpjail: &str, script: &str) -> Output {
        let scratch = self.rig.scratch().path_text("");
        let start = format!(
            "mount -t tmpfs -o mode=755 x /run
            mkdir /run/etc /run/etc-work /run/lib /run/lib-work
            mount -t overlay -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/etc-work x /etc
            mount -t overlay -o lowerdir=/var/lib,upperdir=/run/lib,workdir=/run/lib-work x /var/lib
            rm -f /etc/resolv.conf && touch /etc/resolv.conf
            mount --bind {scratch}/hosts /etc/hosts
            mount --bind {scratch}/nsswitch.conf /etc/nsswitch.conf
            install -m 755 {scratch}/rule.py /run/rule.py
            install -m 755 {httpjail} /run/httpjail
            export SUDO_UID=65534 SUDO_GID=65534 HTTPJAIL_DANGER_DISABLE_CERT_VALIDATION=1
            exec /run/httpjail --proc /run/rule.py -- sh -c \"$SCRIPT\""
        );
        let start = format!("export SCRIPT='{}'; {start}", script.replace('\'', r"'\''"));
        self.rig.run_outside(User::Root, &start)
    }
}

/// Output of attempts that did not get out: httpjail stopped them, or the request reached the allowed host.
const REFUSALS: [&str; 3] = [
    "blocked by httpjail",
    "Connection timed out",
    "OUT GET a.test ",
];

/// The rule, as a line processor.
const RULE: &str = r#"#!/usr/bin/python3
import json, sys
for line in sys.stdin:
    print("true" if json.loads(line)["host"] == "a.test" else "false", flush=True)
"#;

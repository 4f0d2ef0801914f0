//! `docs/bans.md`: its jail for fail2ban on a stock Debian, and its program for CrowdSec. `tests/proxy/fail2ban.rs` runs the action
//! behind HAProxy.

use std::process::Command;

use crate::harness::lab::{Host, Scratch, assert_contains};
use crate::harness::page::Page;

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");

/// fail2ban reads the journal and bans by the action that the page copies.
#[test]
fn jail_of_the_page_is_valid() {
    let page = Page::new(include_str!("../../../docs/bans.md")).section("## fail2ban");
    let (host, scratch) = (Host::new(), Scratch::new());
    let config = scratch.path_text("fail2ban");
    host.run("cp", &["-r", "/etc/fail2ban", &config]);
    let copy = page.command("cp ");
    assert_contains(&copy, &["/usr/share/doc/peername/", "/etc/fail2ban/"]);
    let copy = copy
        .replace("/usr/share/doc/peername", PACKAGING)
        .replace("/etc/fail2ban", &config);
    host.run("sh", &["-ec", &copy]);
    scratch.write("fail2ban/jail.local", page.fenced("ini")[0]);
    let dump = host.run("fail2ban-client", &["-c", &config, "--dp"]);
    assert_contains(
        &dump,
        &[
            "['add', 'sshd', 'systemd']",
            "['set', 'sshd', 'addaction', 'peername']",
            "/etc/peername/denied",
        ],
    );
}

/// The program adds and removes its own entries, and leaves those of others.
#[test]
fn program_for_crowdsec_edits_the_list() {
    let page = Page::new(include_str!("../../../docs/bans.md")).section("## CrowdSec");
    let (host, scratch) = (Host::new(), Scratch::new());
    let list = scratch.write("denied", OTHERS);
    let program = page.fenced("sh")[0].replace("/etc/peername/denied", &list);
    let program = scratch.write("bouncer", &program);
    let run = |words: &str| {
        let args: Vec<_> = [&*program].into_iter().chain(words.split(' ')).collect();
        host.run("sh", &args);
        scratch.read("denied")
    };
    let banned = format!("{OTHERS}203.0.113.7 # crowdsec\n");
    assert_eq!(run("add 203.0.113.7 3600 ssh {}"), banned);
    assert_eq!(run("add 203.0.113.7 3600 ssh {}"), banned);
    assert_eq!(run("del 203.0.113.7 3600 ssh {}"), OTHERS);
}

/// When the disk is full, the action and the program fail, and all lines stay.
#[test]
fn full_disk_leaves_the_list_as_it_is() {
    let page = include_str!("../../../docs/bans.md");
    let (host, scratch) = (Host::new(), Scratch::new());
    let list = scratch.write("denied", OTHERS);
    let program = Page::new(page).section("## CrowdSec").fenced("sh")[0]
        .replace("/etc/peername/denied", &list)
        .replace("$1", "add")
        .replace("$2", "203.0.113.8");
    let config = scratch.path_text("fail2ban");
    host.run("cp", &["-r", "/etc/fail2ban", &config]);
    let action = format!("{PACKAGING}/fail2ban/action.d/peername.conf");
    host.run("cp", &[&action, &scratch.path_text("fail2ban/action.d")]);
    let jail = format!(
        "[sshd]\nenabled = true\nbackend = polling\nlogpath = {list}\naction = peername[denyfile=\"{list}\"]\n"
    );
    scratch.write("fail2ban/jail.local", &jail);
    let dump = host.run("fail2ban-client", &["-c", &config, "--dp"]);
    let action_command = |name: &str| {
        let (_, rest) = dump.split_once(&format!("['{name}', '")).expect(name);
        let (command, _) = rest.split_once("'],").expect("its end");
        command.replace("<ip>", "203.0.113.7")
    };
    for tool in ["grep", "sed"] {
        let path = host.run("sh", &["-c", "command -v \"$0\"", tool]);
        scratch.write_program(
            tool,
            &format!("#!/bin/sh\nexec {} \"$@\" >/dev/full\n", path.trim()),
        );
    }
    let (ban, unban) = (action_command("actionban"), action_command("actionunban"));
    for command in [ban, unban, action_command("actionflush"), program] {
        let script = format!("PATH={}:$PATH\n{command}", scratch.path_text(""));
        let output = host.output(Command::new("sh").args(["-c", &script]), "");
        assert!(!output.status.success(), "{command}: {output:?}");
        assert_eq!(scratch.read("denied"), OTHERS, "{command}");
    }
}

const OTHERS: &str = "192.0.2.1 # mine\n203.0.113.7 # fail2ban sshd\n";

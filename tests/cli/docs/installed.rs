//! docs/service.md: once installed, the unit's own command serves, and uninstalling leaves nothing behind.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::addr::{fresh_client_v4, v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, Process, Scratch};
use crate::harness::peername::BINARY;
use crate::harness::rig::exec::built_library;
use crate::harness::rig::proxy::header_for;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Runs the page's `make` command with a directory of the test's own instead of `/`.
fn make(target: &str, into: &Scratch) {
    let built = Path::new(BINARY).parent().expect("a directory");
    let output = Command::new("make")
        .current_dir(REPOSITORY)
        .args([target, "PREFIX=/usr"])
        .arg(format!("RELEASE={}", built.display()))
        .arg(format!("DESTDIR={}", into.path_text("root")))
        .env_remove("MAKEFLAGS")
        .output()
        .expect("make");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

fn files(below: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(below).expect("a directory") {
        let entry = entry.expect("an entry").path();
        match entry.is_dir() && !entry.is_symlink() {
            true => all.extend(files(&entry)),
            false => all.push(entry.display().to_string()),
        }
    }
    all
}

#[test]
fn service_page_works_as_written() {
    let page = include_str!("../../../docs/service.md");
    for line in [
        "make release",
        "sudo make install",
        "peername config check /etc/peername/proxy.toml",
    ] {
        assert!(page.lines().any(|words| words.trim() == line), "{line}");
    }
    // Builds the library beside the program, where `make release` puts it.
    built_library();
    let (lab, scratch) = (Lab::new(), Scratch::new());
    make("install", &scratch);
    let root = scratch.path_text("root");
    let unit = fs::read_to_string(format!("{root}/usr/lib/systemd/system/peername.service"));
    let unit = unit.expect("the unit");
    let value = |key: &str| {
        let line = unit
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("no {key}"))
    };
    let documentation = value("Documentation")
        .strip_prefix("file://")
        .expect("ours");
    assert!(
        Path::new(&format!("{root}{documentation}")).exists(),
        "{documentation}"
    );
    // The step that the page leaves to its reader: the balancers' addresses, here the lab's.
    let list = format!("{root}/etc/peername/allowed-subnets.txt");
    fs::write(&list, "10.81.0.2\n").expect("the list");
    let config = format!("{root}/etc/peername/proxy.toml");
    let example = fs::read_to_string(&config).expect("the example");
    fs::write(&config, example.replace("@/etc", &format!("@{root}/etc"))).expect("the example");
    // The paths of the unit below the test's root; everything else is its own.
    let start = value("ExecStart").replace("/usr/bin", &format!("{root}/usr/bin"));
    let start = start.replace(" /etc", &format!(" {root}/etc"));
    let capabilities = value("AmbientCapabilities")
        .to_lowercase()
        .replace("cap_", "+")
        .replace(' ', ",");
    let sandbox = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--no-new-privs",
        &format!("--bounding-set=-all,{capabilities}"),
        &format!("--inh-caps=-all,{capabilities}"),
        &format!("--ambient-caps={capabilities}"),
    ];
    let mut words = start.split(' ');
    let (program, args): (_, Vec<_>) = (words.next().expect("a program"), words.collect());
    let listen = v4([10, 81, 0, 1], 8022);
    lab.server
        .run("chmod", &["-R", "a+rX", &scratch.path_text("")]);
    let check = [&sandbox[1..], &[program, "config", "check", &config]].concat();
    lab.server.run("setpriv", &check);
    let backend = Backend::listen(&lab.server, v4([127, 0, 0, 1], 22));
    let proxy =
        Process::start_through(&lab.server, &sandbox, program, &args).wait_listening(&[listen]);
    let client = fresh_client_v4();
    let _down = Conn::connect_and_send(&lab.balancer, listen, &header_for(client));
    assert_eq!(backend.accept().peer_addr(), client);
    Conn::assert_refused(&lab.server, listen);
    drop(proxy);

    make("uninstall", &scratch);
    let left = files(Path::new(&root));
    assert!(
        left.len() == 2 && left.iter().all(|path| path.contains("/etc/peername/")),
        "{left:?}"
    );
    // Installing again does not overwrite the operator's changes.
    make("install", &scratch);
    assert_eq!(fs::read_to_string(&list).expect("the list"), "10.81.0.2\n");
}

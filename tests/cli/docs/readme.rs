//! README.md, word for word: the three terminals, and the server that sees its clients by itself. `outbound.rs` has the jail.

use super::follow::{shell, start};
use crate::harness::addr::addr;
use crate::harness::lab::{Host, Process};
use crate::harness::page::Page;
use crate::harness::peername::BINARY;
use crate::harness::rig::exec::built_library;

const README: Page = Page::new(include_str!("../../../README.md"));
const SECTION: &str = "## Who came in: `proxy`, `exec`, `agent`";

#[test]
fn readmes_three_terminals_show_the_client() {
    let section = README.section(SECTION);
    let host = Host::new();
    let backend = Process::start(&host, "bash", &["-c", &section.command("nc -kvnl")]);
    backend.wait_logged("Listening on");
    let proxy = section.command("sudo target/release/peername proxy");
    let _proxy = start(&host, &[], &proxy.replace("sudo target/release/", ""));
    shell(&host, &section.command("printf"));
    backend.wait_logged("Connection received on 203.0.113.7 56324");
    backend.wait_printed("hello");
}

#[test]
fn readmes_server_sees_its_client_by_itself() {
    let section = README.section(SECTION);
    built_library();
    let host = Host::new();
    let exec = section.command("target/release/peername exec");
    let exec = exec.replace("target/release/peername", &format!("exec {BINARY}"));
    // Python's log is not buffered with this variable.
    let server = Process::start(&host, "env", &["PYTHONUNBUFFERED=1", "sh", "-ec", &exec])
        .wait_listening(&[addr("127.0.0.1:8080")]);
    let request = section
        .commands()
        .into_iter()
        .find(|command| command.contains("GET / "));
    shell(&host, &request.expect("a request"));
    server.wait_logged("203.0.113.7 - - ");
}

//! A server that is started with a connection that was accepted before, as by inetd or by systemd's `Accept=yes`: the
//! connection is not accepted by the server, so nothing would read its header.

use std::process::Command;

use crate::harness::lab::Host;
use crate::harness::peername::BINARY;
use crate::harness::rig::exec::built_library;

#[test]
fn connection_that_was_accepted_before_is_refused_at_the_start() {
    built_library();
    for mode in ["preload", "notify", "netns"] {
        for descriptor in ["0", "3"] {
            let printed = start_with_connection(mode, descriptor, "8443");
            let error = format!("descriptor {descriptor} is a connection that was accepted before");
            assert!(printed.starts_with("exit 125"), "{mode}: {printed}");
            assert!(printed.contains(&error), "{mode}: {printed}");
        }
    }
    // The connection's port, 8443, is none of --ports, so no header is expected.
    let printed = start_with_connection("preload", "0", "25");
    assert!(printed.starts_with("exit 0"), "{printed}");
}

/// Starts a program with a connection at this descriptor. Returns `exit CODE` and standard error.
fn start_with_connection(mode: &str, descriptor: &str, ports: &str) -> String {
    let mut command = Command::new("python3");
    command.args(["-c", START, BINARY, mode, descriptor, ports]);
    let output = Host::new().output(&mut command, "");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const START: &str = include_str!("accepted/start.py");

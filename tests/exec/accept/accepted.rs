//! A server that is started with a connection that was accepted before, as by inetd or by systemd's `Accept=yes`: the
//! connection is not accepted by the server, so nothing would read its header. Or with a listener, as by other sockets of systemd.
//! Descriptor 5 is one that no service manager announces.

use std::process::Command;

use crate::harness::lab::{Host, stdout_text};
use crate::harness::peername::BINARY;
use crate::harness::rig::exec::built_library;

#[test]
fn connection_that_was_accepted_before_is_refused_at_the_start() {
    built_library();
    for mode in ["preload", "notify", "netns"] {
        for descriptor in ["0", "3", "5"] {
            let printed = start_with(mode, descriptor, "8443", "connection");
            let error = format!("descriptor {descriptor} is a connection that was accepted before");
            assert!(printed.starts_with("exit 125"), "{mode}: {printed}");
            assert!(printed.contains(&error), "{mode}: {printed}");
        }
    }
    // The connection's port, 8443, is none of --ports, so no header is expected.
    let printed = start_with("preload", "0", "25", "connection");
    assert!(printed.starts_with("exit 0"), "{printed}");
}

/// A script may have opened a connection itself. Without --ports its port, too, expects headers.
#[test]
fn outgoing_connection_is_not_taken_for_an_accepted_one() {
    built_library();
    let printed = start_with("preload", "5", "1-65535", "outgoing");
    assert!(printed.starts_with("exit 125"), "{printed}");
    let printed = start_with("preload", "5", "", "outgoing");
    assert!(printed.starts_with("exit 0"), "{printed}");
    let printed = start_with("preload", "5", "", "connection");
    assert!(printed.starts_with("exit 125"), "{printed}");
    // At these, a connection was announced, whatever its port.
    for descriptor in ["0", "3"] {
        let printed = start_with("preload", descriptor, "", "outgoing");
        assert!(printed.starts_with("exit 125"), "{printed}");
    }
}

/// A listener of the network outside bypasses the proxy of `--mode netns`; the other modes read the headers of its clients.
#[test]
fn listener_that_was_opened_before_is_refused_in_a_private_network() {
    built_library();
    for passed in ["listener", "bound", "datagrams"] {
        for descriptor in ["0", "3", "5"] {
            // Port 8443 is taken by the listener.
            let printed = start_with("netns", descriptor, "8444", passed);
            let error =
                format!("descriptor {descriptor} is a TCP socket without a peer or a UDP socket");
            assert!(printed.starts_with("exit 125"), "{passed}: {printed}");
            assert!(printed.contains(&error), "{passed}: {printed}");
            let printed = start_with("preload", descriptor, "8443", passed);
            assert!(printed.starts_with("exit 0"), "{passed}: {printed}");
        }
    }
}

/// As of a socket unit whose service has `PrivateNetwork=yes`.
#[test]
fn listener_of_another_network_is_refused_at_the_start() {
    built_library();
    for mode in ["preload", "notify"] {
        for descriptor in ["0", "3", "5"] {
            let printed = start_with(mode, descriptor, "8443", "foreign");
            let error = format!("descriptor {descriptor} is a listener of another network");
            assert!(printed.starts_with("exit 125"), "{mode}: {printed}");
            assert!(printed.contains(&error), "{mode}: {printed}");
        }
        let printed = start_with(mode, "3", "25", "foreign");
        assert!(printed.starts_with("exit 0"), "{mode}: {printed}");
    }
}

/// Starts a program with this socket at this descriptor. Returns `exit CODE` and standard error.
fn start_with(mode: &str, descriptor: &str, ports: &str, passed: &str) -> String {
    let mut command = Command::new("python3");
    command.args(["-c", START, BINARY, mode, descriptor, ports, passed]);
    let output = Host::new().output(&mut command, "");
    stdout_text(&output)
}

const START: &str = include_str!("accepted/start.py");

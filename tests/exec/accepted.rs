//! A server that is started with a connection that was accepted before, as by inetd or by systemd's `Accept=yes`: nothing would
//! read its header.

use std::process::Command;

use crate::harness::lab::Host;
use crate::harness::peername::BINARY;
use crate::harness::rig::exec::built_library;

#[test]
fn connection_that_was_accepted_before_is_refused_at_the_start() {
    built_library();
    for mode in ["preload", "notify", "netns"] {
        for descriptor in ["0", "3"] {
            let said = start_with_connection(mode, descriptor, "8443");
            let about = format!("descriptor {descriptor} is a connection that was accepted before");
            assert!(said.starts_with("exit 125"), "{mode}: {said}");
            assert!(said.contains(&about), "{mode}: {said}");
        }
    }
    // A port that expects no headers.
    let said = start_with_connection("preload", "0", "25");
    assert!(said.starts_with("exit 0"), "{said}");
}

/// The exit code, and standard error.
fn start_with_connection(mode: &str, descriptor: &str, ports: &str) -> String {
    let mut command = Command::new("python3");
    command.args(["-c", START, BINARY, mode, descriptor, ports]);
    let output = Host::new().output(&mut command, "");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const START: &str = r#"
import os, socket, subprocess, sys
binary, mode, descriptor, ports = sys.argv[1:]
listener = socket.create_server(("127.0.0.1", 8443))
client = socket.create_connection(listener.getsockname())
accepted, _ = listener.accept()
script = f'{"exec 3<&0 </dev/null; export LISTEN_FDS=1 LISTEN_PID=$$;" if descriptor == "3" else ""} exec "$@"'
args = ["sh", "-c", script, "sh", binary, "exec", "--mode=" + mode, "--ports=" + ports, "--", "true"]
ended = subprocess.run(args, stdin=accepted, stderr=subprocess.PIPE, text=True)
print("exit", ended.returncode, ended.stderr)
"#;

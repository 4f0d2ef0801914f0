//! `--allow-tcp`: protocols other than HTTP, to the destinations that are listed.

use crate::harness::lab::{Process, wait_for};
use crate::harness::rig::jail::{JailRig, User};

const GREETER: &str = r#"
import socket, sys, threading
server = socket.create_server(("10.81.0.1", 7022))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b"hello from the server\n")
    connection.close()
"#;

fn start_greeter(rig: &JailRig) -> Process {
    let script = rig.scratch().write("greeter.py", GREETER);
    let greeter = Process::start(&rig.stage.lab.server, "/usr/bin/python3", &["-u", &script]);
    wait_for("the server", || {
        greeter.log().contains("ready").then_some(())
    });
    greeter
}

/// In SSH, SMTP and most databases the server sends first.
#[test]
fn listed_destination_is_relayed_and_no_other() {
    let rig = JailRig::new();
    let _greeter = start_greeter(&rig);
    let connect = |host: &str| format!("timeout 10 bash -c 'cat </dev/tcp/{host}/7022'");
    let options = ["--allow-tcp=a.test:7022"];
    let printed = rig.succeeds(User::Nobody, &options, &connect("a.test"));
    assert_eq!(printed, "hello from the server\n");
    for host in ["b.test", "10.81.0.1"] {
        let output = rig.run(User::Nobody, &options, &connect(host));
        assert!(
            !output.status.success() && output.stdout.is_empty(),
            "{host}: {output:?}"
        );
    }
    let refused = rig.run(User::Nobody, &[], &connect("a.test"));
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("refused"),
        "{refused:?}"
    );
}

#[test]
fn listed_destination_is_checked_as_a_connect() {
    let rig = JailRig::new();
    let _greeter = start_greeter(&rig);
    let (check, option) = rig.start_check(&["a.test"]);
    let options = [&option[..], "--allow-tcp=*.test:7022"];
    let connect = |host: &str| format!("timeout 10 bash -c 'cat </dev/tcp/{host}/7022'");
    let printed = rig.succeeds(User::Nobody, &options, &connect("a.test"));
    assert_eq!(printed, "hello from the server\n");
    let denied = rig.run(User::Nobody, &options, &connect("b.test"));
    assert!(denied.stdout.is_empty(), "{denied:?}");
    wait_for("the questions", || {
        let log = check.log();
        let asked = ["a.test:7022 CONNECT", "b.test:7022 CONNECT"];
        asked.iter().all(|line| log.contains(line)).then_some(())
    });
}

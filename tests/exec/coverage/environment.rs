//! Processes of the program that have lost the library: they must not accept by themselves.

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::rig::exec::{Libc, PRELOAD, ProgramRig, ServerRig, compiled_server, v2};

/// A parent that listens, and a child with an empty environment that inherits the listener and accepts. With
/// `propagated` the library is carried along; with a bare system call it is lost.
const PARENT: &str = include_str!("environment/parent.py");

/// How the parent executes the child: by a function that propagates the library, or by a bare system call.
const EXEC_CALLS: [&str; 2] = ["propagated", "bare"];

#[test]
fn child_with_an_empty_environment_sees_its_clients() {
    for call in EXEC_CALLS {
        let program = ProgramRig::with_mode(PRELOAD, &[], &["python3", "-c", PARENT, call]);
        for _ in 0..20 {
            let client = fresh_client_v4();
            let conn = Conn::connect_and_send(&program.lab.balancer, LISTEN_V4, &v2(client));
            let output = conn.recv_text_to_end();
            let log = program.process.log();
            assert_eq!(output, format!("{client} {client}\n"), "{call} {log}");
        }
    }
}

#[test]
fn child_with_an_empty_environment_accepts_nothing_without_a_header() {
    for call in EXEC_CALLS {
        let program = ProgramRig::with_mode(PRELOAD, &[], &["python3", "-c", PARENT, call]);
        program.assert_refused(b"EHLO example\r\n");
    }
}

/// A program between launcher and server clears the environment, or makes the dynamic linker ignore LD_PRELOAD. The server
/// still sees its clients.
#[test]
fn server_behind_another_program_sees_its_clients() {
    let (dynamic, fixed) = (compiled_server(Libc::Glibc), compiled_server(Libc::Static));
    let run = "--accept=block; exit $?";
    for script in [
        format!("env -i {dynamic} {run}"),
        format!("env -i {fixed} {run}"),
        format!("{fixed} {run}"),
        format!("sudo -n -u nobody {dynamic} {run}"),
        format!("su nobody -s /bin/sh -c '{dynamic} --accept=block'; exit $?"),
        format!("runuser -u nobody -- {dynamic} {run}"),
        format!("runuser -u nobody -- env -i {dynamic} {run}"),
        format!("setpriv --reuid=65534 --clear-groups --no-new-privs env -i {dynamic} {run}"),
        format!("until env -i {dynamic} {run}; do :; done"),
        format!("perl -e 'delete $ENV{{LD_PRELOAD}}; exec @ARGV' {dynamic} {run}"),
    ] {
        let program = ProgramRig::with_mode(PRELOAD, &[], &["sh", "-c", &script]);
        let served = ServerRig::from_process(program.process, program.lab);
        for header_first in [v2(fresh_client_v4()).len(), 20] {
            let client = fresh_client_v4();
            let header = v2(client);
            let conn = served.connect_and_send(&header[..header_first]);
            conn.send(&[&header[header_first..], b"hello"].concat());
            served.assert_sees(&conn, client);
        }
        let conn = served.connect_and_send(b"hello");
        assert_eq!(conn.recv_text_to_end(), "", "{script}");
    }
}

/// Processes with and without the library take turns at one listener, each for a few connections. None of
/// them accepts one without a header.
#[test]
fn processes_taking_turns_accept_nothing_without_a_header() {
    let program = ProgramRig::with_mode(PRELOAD, &[], &["python3", "-c", TURNS]);
    for number in 0..CONNECTIONS {
        program.assert_refused(b"EHLO example\r\n");
        if number.is_multiple_of(4) {
            let client = fresh_client_v4();
            let conn = Conn::connect_and_send(&program.lab.balancer, LISTEN_V4, &v2(client));
            let output = conn.recv_text_to_end();
            assert_eq!(
                output,
                format!("{client} {client}\n"),
                "{}",
                program.process.log()
            );
        }
    }
}

const CONNECTIONS: usize = 10_000;

/// One process has the library and stays. Beside it runs a sequence of processes without the library; each is started by a bare
/// execve(2) and ends after three connections.
const TURNS: &str = include_str!("environment/turns.py");

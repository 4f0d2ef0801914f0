//! Unix sockets that programs of a jail use among themselves.

use std::process::Command;

use crate::harness::lab::{assert_prints, stdout_text};
use crate::harness::peername::{USERS, User};
use crate::harness::rig::jail::JailRig;

fn run_python(rig: &JailRig, user: User, options: &[&str], script: &str) -> String {
    let script = rig
        .scratch()
        .write("unix.py", &format!("{PRELUDE}\n{script}"));
    rig.succeeds(user, options, &format!("/usr/bin/python3 {script}"))
}

/// Sockets with each kind of address are reached from any directory. getsockname(2) returns the address as the program wrote
/// it.
#[test]
fn programs_of_a_jail_reach_each_other() {
    let rig = JailRig::new();
    for user in USERS {
        let printed = run_python(&rig, user, &[], AMONG_THEMSELVES);
        assert_eq!(printed, "ok\n", "{user:?}");
    }
}

/// connect(2) to a full backlog, blocking or not, with a time limit or a signal, has the same results as outside of a jail.
#[test]
fn connect_waits_as_it_does_without_a_jail() {
    let rig = JailRig::new();
    let inside = run_python(&rig, User::Nobody, &[], WAITING);
    let script = rig.scratch().path_text("unix.py");
    let outside = rig.run_outside(User::Nobody, &format!("/usr/bin/python3 {script}"));
    assert_eq!(inside, stdout_text(&outside));
    assert!(inside.ends_with("ok\n"), "{inside}");
}

/// SO_PEERCRED has the user of the client, and not that of the jail's mediator, which makes connect(2) for it.
#[test]
fn peer_has_the_users_identity() {
    let rig = JailRig::new();
    let printed = run_python(&rig, User::Root, &[], PEER);
    assert_eq!(printed, "0 0\n1 1\n7 9\n7 9\n");
    let printed = run_python(&rig, User::Nobody, &[], "print(*peer(lambda: None))");
    assert_eq!(printed, "65534 65534\n");
}

/// The caller has all capabilities in a user namespace of its own. They give it no rights to the files of others, also where
/// the mediator makes the call.
#[test]
fn capabilities_of_a_nested_namespace_are_not_the_mediators() {
    let rig = JailRig::new();
    let printed = run_python(&rig, User::Root, &[], NESTED);
    assert_eq!(printed, "EACCES EACCES\n");
}

/// A call that a signal interrupts (SA_RESTART) is made only once. The mediator closes its descriptors of removed sockets:
/// there are more of them than it may have.
#[test]
fn calls_are_made_once_and_leave_nothing() {
    let rig = JailRig::new();
    let script = rig
        .scratch()
        .write("once.py", &format!("{PRELUDE}\n{ONCE}"));
    let jail = rig.scratch().path_text("peername");
    let command = format!("ulimit -n 1024; {jail} jail -q -- /usr/bin/python3 {script}");
    let output = rig.run_outside(User::Nobody, &command);
    let printed = stdout_text(&output);
    assert_eq!(printed, "0\nok\n", "{output:?}");
}

/// More processes call connect(2), one after the other, than the mediator may have descriptors.
#[test]
fn processes_that_have_exited_leave_descriptors_for_others() {
    let rig = JailRig::new();
    let script = rig
        .scratch()
        .write("many.py", &format!("{PRELUDE}\n{MANY}"));
    let jail = rig.scratch().path_text("peername");
    let command = format!("ulimit -n 512; {jail} jail -q -- /usr/bin/python3 {script}");
    assert_prints(&rig.run_outside(User::Nobody, &command), "600 ENOENT\n");
}

/// PostgreSQL accepts or refuses a user by SO_PEERCRED, and Redis answers at a Unix socket.
#[test]
fn servers_serve_their_clients_in_the_jail() {
    let rig = JailRig::new();
    let script = include_str!("unix_sockets/servers.sh");
    let output = rig.run_program(User::Root, &[], &["bash", "-c", script]);
    assert_prints(&output, "postgres\nPeer authentication failed\nPONG\n");
}

/// The program makes 32-bit system calls of its own, without the C library.
#[test]
fn program_of_32_bits_connects() {
    let rig = JailRig::new();
    let source = rig.scratch().write("small.c", SMALL);
    let binary = rig.scratch().path_text("small");
    let built = Command::new("cc")
        .args([
            "-m32",
            "-static",
            "-nostdlib",
            "-fno-stack-protector",
            "-o",
            &binary,
            &source,
        ])
        .status()
        .expect("cc");
    assert!(built.success());
    let script = format!("{binary}; echo $?");
    assert_eq!(rig.succeeds(User::Nobody, &[], &script), "0\n");
}

const PRELUDE: &str = include_str!("unix_sockets/prelude.py");

const AMONG_THEMSELVES: &str = include_str!("unix_sockets/among_themselves.py");

const WAITING: &str = include_str!("unix_sockets/waiting.py");

const PEER: &str = include_str!("unix_sockets/peer.py");

const NESTED: &str = include_str!("unix_sockets/nested.py");

const ONCE: &str = include_str!("unix_sockets/once.py");

const MANY: &str = include_str!("unix_sockets/many.py");

/// Binds, listens and connects to a Unix socket by `int $0x80`.
const SMALL: &str = include_str!("unix_sockets/small.c");

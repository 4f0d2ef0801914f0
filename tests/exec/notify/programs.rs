//! Programs under the supervisor that no library reaches, and what a program keeps of its process.

use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;

use crate::harness::addr::{LISTEN_V4, fresh_client_v4, fresh_client_v6};
use crate::harness::lab::{Lab, Process, Scratch, stdout_text};
use crate::harness::peername::{AS_NOBODY, NO_CAPABILITIES, Peername, copy_executable, words};
use crate::harness::rig::exec::{Libc, compiled_server};
use crate::harness::rig::exec_notify::{
    NotifyRig, assert_sees, compiled_go_server, kill_pid, network_of, wait_helper_pid,
};
use crate::harness::rig::proxy::header_for;

#[test]
fn go_program_sees_the_client_static_and_with_cgo() {
    for cgo in [false, true] {
        let program = compiled_go_server(cgo);
        // Go is recognised, also where it is dynamically linked.
        let program = program.to_str().expect("text");
        let exec = NotifyRig::start(&["--mode=auto", "-v"], &[program, "tcp", ":8443"]);
        exec.process.wait_logged("Go program");
        for client in [fresh_client_v4(), fresh_client_v6()] {
            let request = [&header_for(client)[..], b"GET / HTTP/1.0\r\n\r\n"].concat();
            let (answer, _) = exec.connect_and_send(&request).recv_to_end();
            let answer = String::from_utf8(answer).expect("text");
            let line = answer.lines().last().expect("a line");
            assert_eq!(line, format!("peer {client}"), "cgo: {cgo}");
        }
    }
}

/// Without any capability, `no_new_privs` replaces CAP_SYS_ADMIN, and the log names what no longer works.
#[test]
fn ordinary_user_can_supervise() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let copy = copy_executable(&lab.server, &scratch);
    let server = scratch.path_text("server");
    lab.server
        .run("cp", &[&compiled_server(Libc::Static), &server]);
    let ordinary = [AS_NOBODY, NO_CAPABILITIES].concat();
    let line = format!("exec --trust=10.81.0.0/24 -v -- {server} --accept=threads --brief");
    let args = words(&line);
    let mut process =
        Process::start_through(&lab.server, &ordinary, &copy, &args).wait_listening(&[LISTEN_V4]);
    for client in [fresh_client_v4(), fresh_client_v4()] {
        assert_sees(&lab, client);
    }
    process.wait_logged("no_new_privs");
    // The monitor needs no privilege to end the program.
    let network = network_of(&process.pid().to_string()).expect("a network");
    kill_pid(wait_helper_pid("peername-notify", &network));
    process.assert_killed_by(Signal::TERM);
}

/// The program's arguments, exit code and signals do not change.
#[test]
fn program_keeps_its_process() {
    let lab = Lab::new();
    let run = |program: &[&str]| {
        let args = [&["exec", "--mode=notify", "--trust=any", "--"], program].concat();
        Peername::run(&lab.server, &args)
    };
    assert_eq!(run(&["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(run(&["/nonexistent"]).status.code(), Some(127));
    assert_eq!(run(&["/etc/passwd"]).status.code(), Some(126));
    let output = run(&["sh", "-c", "echo $1 $PPID; kill -9 $$", "sh", "a b"]);
    assert!(stdout_text(&output).starts_with("a b "));
    // The program runs under timeout(1), which dies of the same signal or reports it as 137.
    assert!(output.status.signal() == Some(9) || output.status.code() == Some(137));
}

//! The order of a start, by the system calls of the process: the launcher is forked before anything is opened, sockets are
//! opened before privileges are dropped, and threads are started after the confinement, which does not apply to threads that
//! run already.

use std::fs;

use rustix::process::Signal;

use crate::harness::addr::LISTEN_V4;
use crate::harness::lab::{Lab, Scratch};
use crate::harness::peername::{BINARY, Peername};

/// The steps in their order, each with the texts by which strace(1) shows its first system call.
const STEPS: [(&str, &[&str]); 6] = [
    ("fork the launcher", &["clone(child_stack=NULL", "fork("]),
    ("listen", &["listen("]),
    ("drop privileges", &["capset("]),
    ("confine to files", &["landlock_restrict_self("]),
    (
        "confine to system calls",
        &["seccomp(SECCOMP_SET_MODE_FILTER"],
    ),
    ("start threads", &["CLONE_THREAD"]),
];

#[test]
fn every_command_starts_in_one_order() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let ca = format!("--ca={}", scratch.path_text("ca"));
    lab.server.run(BINARY, &["ca", "init", &ca]);
    let listen = format!("--listen={LISTEN_V4}");
    for command in [
        &["proxy", "--trust=any", "--target-v4=127.0.0.1:9000"][..],
        &["forward", "--to=127.0.0.1:9000"],
        &["intercept", "--allow-client=any", &ca],
    ] {
        let trace = scratch.path_text("trace");
        let args = [command, &[&listen, "--workers=2", "--log-format=json"]].concat();
        let through = ["strace", "--follow-forks", "--output", &trace];
        let process = Peername::start_through(&lab.server, &through, &args, &[LISTEN_V4]);
        process.wait_started();
        process.signal(Signal::TERM);
        drop(process);
        let calls = calls_of_first_process(&fs::read_to_string(&trace).expect("the trace"));
        let positions = STEPS.map(|(step, texts)| {
            calls
                .iter()
                .position(|call| texts.iter().any(|text| call.contains(text)))
                .unwrap_or_else(|| panic!("{command:?}: no call is to {step}: {calls:#?}"))
        });
        assert!(
            positions.is_sorted(),
            "{command:?}: {positions:?}: {calls:#?}"
        );
    }
}

/// The calls of the process that was started, not of the launcher.
fn calls_of_first_process(trace: &str) -> Vec<String> {
    let first = trace.split(' ').next().expect("a process id").to_owned();
    trace
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(process, _)| *process == first)
        .map(|(_, call)| call.trim_start().to_owned())
        .collect()
}

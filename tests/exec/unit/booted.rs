//! A container with a booted systemd, the files of this machine, and the network of the lab's server.

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Output};
use std::time::Instant;

use peername_sys::process::pidfd::descendants;

use crate::harness::addr::v4;
use crate::harness::conn::Conn;
use crate::harness::lab::{
    Lab, OWN_PID_NAMESPACE, Process, Scratch, WAIT_LIMIT, assert_succeeds, poll_until, stdout_text,
    wait_for, wait_until,
};
use crate::harness::peername::BINARY;
use crate::harness::rig::exec::built_library;

/// A container, with systemd as its init.
pub(super) struct Booted {
    /// The process id of the container's init, systemd.
    init: u32,
    _process: Process,
    lab: Lab,
    _scratch: Scratch,
}

impl Booted {
    pub(super) fn new() -> Self {
        let lab = Lab::without_routes();
        let scratch = Scratch::new();
        let directory = scratch.path_text("machine");
        fs::create_dir(&directory).expect("a directory");
        let library = built_library().to_string_lossy();
        let args = [&directory, BINARY, &library];
        let process = Process::start_through(&lab.server, OWN_PID_NAMESPACE, SCRIPT, &args);
        let init = wait_for("init", || {
            descendants(process.pid()).into_iter().find(is_init)
        });
        let machine = Self {
            init,
            _process: process,
            lab,
            _scratch: scratch,
        };
        wait_until("the boot", || {
            let state = machine.output(&["systemctl", "is-active", "basic.target"]);
            state.status.success()
        });
        machine
    }

    /// Runs a command inside, and returns its standard output.
    #[track_caller]
    pub(super) fn run(&self, command: &[&str]) -> String {
        assert_succeeds(&self.output(command))
    }

    /// Waits until a command prints this text.
    #[track_caller]
    pub(super) fn wait_printed(&self, command: &[&str], text: &str) {
        let deadline = Instant::now() + WAIT_LIMIT;
        let printed = poll_until(deadline, || self.run(command).contains(text).then_some(()));
        assert!(printed.is_some(), "no {text} in {}", self.run(command));
    }

    fn output(&self, command: &[&str]) -> Output {
        let mut nsenter = Command::new("nsenter");
        nsenter.args(["--all", "--target", &self.init.to_string()]);
        self.lab.server.output(nsenter.args(command), "")
    }

    /// Restarts a unit, and asserts that systemd knows its main process, as without peername. Postfix's unit has none
    /// (GuessMainPID=no).
    #[track_caller]
    pub(super) fn restart(&self, unit: &str) {
        let restart = self.output(&["systemctl", "restart", unit]);
        let status = self.output(&["systemctl", "status", "--full", "--no-pager", unit]);
        let status = stdout_text(&status);
        assert!(restart.status.success(), "{restart:?}\n{status}");
        let has_main = status.contains("Main PID: ") && status.contains("active (running)");
        assert!(has_main || unit.starts_with("postfix"), "{status}");
    }

    /// Opens a connection from the balancer that begins with these bytes.
    pub(super) fn connect(&self, port: u16, bytes: &[u8]) -> Conn {
        let to: SocketAddr = v4([10, 81, 0, 1], port);
        let listener = format!("sport = :{port}");
        wait_until("a listener", || {
            !self.run(&["ss", "-Hltn", &listener]).is_empty()
        });
        Conn::connect_and_send(&self.lab.balancer, to, bytes)
    }
}

fn is_init(process: &u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| name == "systemd\n")
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/exec/unit/boot.sh");

//! A peername whose binary the test replaces. It runs in a PID namespace, so that every successor process ends with the test.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use peername_sys::process::pidfd::descendants;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::lab::{Host, Process, Scratch, stderr_text, stdout_text, wait_for, wait_until};
use crate::harness::peername::BINARY;

/// The processes of one service, and the path of their binary.
#[derive(Debug)]
pub(crate) struct UpgradeRig {
    pub(crate) processes: Process,
    scratch: Scratch,
    /// The process that serves, by its id outside of the PID namespace.
    pub(crate) serving: u32,
}

/// What is at the path of the binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Good,
    NotExecutable,
    /// Prints an error and exits with 1.
    Exits,
    /// Does nothing.
    Hangs,
    /// Dies of a signal, at once.
    Crashes,
    /// The real one, which fails to start after it has received the sockets.
    Fails,
    /// The real one, which waits some seconds after it has read its configuration: at the first call by which it confines itself.
    Waits,
}

impl Binary {
    /// All that do not become ready, with a part of the reason that is reported.
    pub(crate) const BROKEN: [(Self, &str); 5] = [
        (Self::NotExecutable, "Permission denied"),
        (Self::Exits, "exit status: 1: error: no such option"),
        (Self::Crashes, "SIGSEGV"),
        (Self::Fails, "the new process: "),
        (Self::Hangs, "not ready after"),
    ];
}

impl UpgradeRig {
    /// Starts the binary, and waits for a line that it listens.
    pub(crate) fn start(host: &Host, args: &[&str]) -> Self {
        Self::start_with(host, &[], args)
    }

    /// Like [`Self::start`], through a command that sets variables, such as `env NAME=VALUE`.
    pub(crate) fn start_with(host: &Host, environment: &[&str], args: &[&str]) -> Self {
        let scratch = Scratch::new();
        install(host, &scratch, Binary::Good);
        let binary = scratch.path_text("peername");
        // The service is not process 1: the PID namespace would end with it.
        let init = [
            "sh",
            "-c",
            "\"$@\" & while :; do wait; sleep 0.01; done",
            "sh",
        ];
        let args = [&init, environment, &[binary.as_str()], args].concat();
        let (program, args) = args.split_first().expect("sh");
        let processes = Process::start_in_pid_namespace(host, program, args);
        processes.wait_logged("listening");
        let rig = Self {
            serving: 0,
            processes,
            scratch,
        };
        let serving = rig.servers().into_iter().next().expect("a process");
        Self { serving, ..rig }
    }

    pub(crate) fn install(&self, host: &Host, binary: Binary) {
        install(host, &self.scratch, binary);
    }

    /// Runs `peername upgrade`, which prints the new process's id inside; returns the reported error if it fails.
    pub(crate) fn upgrade(&mut self, host: &Host) -> Result<(), String> {
        let pid = format!("--pid={}", self.serving);
        let output = host.output(Command::new(BINARY).args(["upgrade", &pid]), "");
        if !output.status.success() {
            assert_eq!(output.status.code(), Some(1));
            return Err(stderr_text(&output));
        }
        let inner = stdout_text(&output).trim().to_owned();
        self.serving = wait_for("the new process", || {
            descendants(self.processes.pid())
                .into_iter()
                .find(|pid| inner_pid(*pid).as_ref() == Some(&inner))
        });
        Ok(())
    }

    /// Upgrades this many times. Each third upgrade is to one of the broken binaries, and is refused. Calls `between` before
    /// each upgrade and after the last one.
    pub(crate) fn upgrade_repeatedly(
        &mut self,
        host: &Host,
        times: usize,
        broken: &[(Binary, &str)],
        between: impl Fn(),
    ) {
        let mut broken = broken.iter().cycle();
        for number in 1..=times {
            between();
            if number % 3 == 0 {
                let (binary, reason) = broken.next().expect("a cycle");
                self.install(host, *binary);
                let error = self.upgrade(host).expect_err("it is broken");
                assert!(error.contains(reason), "{binary:?}: {error}");
                self.install(host, Binary::Good);
            } else {
                let before = self.serving;
                self.upgrade(host).expect("it upgrades");
                assert_ne!(self.serving, before);
            }
        }
        between();
    }

    /// The processes that serve or drain, without their helpers (`peername … keep`).
    pub(crate) fn servers(&self) -> Vec<u32> {
        let mut pids = descendants(self.processes.pid());
        pids.retain(|pid| {
            let read = |name| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
            read("comm").trim() == "peername" && !read("cmdline").contains("keep")
        });
        pids
    }

    /// The command lines of the processes that serve or drain and of their launchers, as every user sees them. Each line is
    /// `NAME: ARGUMENTS`.
    pub(crate) fn command_lines(&self) -> Vec<String> {
        let read = |pid: u32, name: &str| {
            fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default()
        };
        let line = |pid| {
            let arguments = read(pid, "cmdline").replace('\0', " ");
            format!("{}: {arguments}", read(pid, "comm").trim())
        };
        let is_own = |line: &String| {
            ["peername: ", "launcher: "]
                .iter()
                .any(|name| line.starts_with(name))
        };
        let pids = descendants(self.processes.pid()).into_iter();
        pids.map(line).filter(is_own).collect()
    }

    /// Waits until the serving process has ended, and returns the last line of its log: the totals.
    pub(crate) fn wait_totals(&self) -> Value {
        wait_until("it has ended", || self.servers().is_empty());
        wait_for("the totals", || {
            let mut lines = self.processes.json_lines().into_iter();
            lines.rfind(|line| line["message"] == "stopped")
        })
    }

    /// Sends the serving process a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.serving).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process id"), signal).expect("kill");
    }

    /// The id of the serving process in its own PID namespace.
    pub(crate) fn serving_inside(&self) -> String {
        inner_pid(self.serving).expect("it serves")
    }

    /// Waits until a new process has read its configuration and waits ([`Binary::Waits`]).
    pub(crate) fn wait_waiting(&self) {
        let is_stopped = |pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.contains(") t ")
        };
        // strace also stops it for a moment at each call.
        let stays_stopped = |pid: &u32| {
            (0..10).all(|_| {
                thread::sleep(Duration::from_millis(30));
                is_stopped(pid)
            })
        };
        wait_until("the new process waits", || {
            let new = self.servers().into_iter();
            new.filter(|pid| *pid != self.serving)
                .any(|pid| stays_stopped(&pid))
        });
    }

    /// Waits until only the serving process is left.
    pub(crate) fn wait_drained(&self) {
        wait_until("earlier processes have ended", || {
            self.servers() == [self.serving]
        });
    }
}

/// Replaces the binary, as package managers do.
fn install(host: &Host, scratch: &Scratch, binary: Binary) {
    let new = scratch.path_text("new");
    let script = |line: &str| {
        let path = scratch.write("script", &format!("#!/bin/sh\n{line}\n"));
        // A file that this process has written may be open in a child of another test (ETXTBSY).
        host.run("cp", &[&path, &new]);
        host.run("chmod", &["755", &new]);
    };
    match binary {
        Binary::Good => drop(host.run("cp", &[BINARY, &new])),
        Binary::NotExecutable => {
            script("exit 0");
            host.run("chmod", &["644", &new]);
        }
        Binary::Exits => script("echo 'error: no such option' >&2; exit 1"),
        Binary::Hangs => script("exec sleep 1000"),
        Binary::Crashes => script("kill -SEGV $$"),
        Binary::Fails => script(&format!("ulimit -n 16; exec {BINARY} \"$@\"")),
        Binary::Waits => script(&format!(
            "exec strace -D -f -qq -o /dev/null -e trace=seccomp -e inject=seccomp:delay_enter=5000000:when=1 {BINARY} \"$@\""
        )),
    }
    host.run("mv", &[&new, &scratch.path_text("peername")]);
}

/// The id of a process in its own PID namespace.
fn inner_pid(pid: u32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back().map(str::to_owned)
}

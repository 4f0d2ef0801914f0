//! The binary under test, as a process.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::addr::{LISTEN_V4, LISTEN_V6};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, Lab, Process, Scratch, stderr_text, wait_for, wait_until};

/// A running `peername`.
#[derive(Debug)]
pub(crate) struct Peername(Process);

impl Peername {
    /// Starts `peername proxy` on the lab's server with [`PROXY_ARGS`] (one listener and one target of each
    /// family, trust in the balancer's networks), then `args`.
    pub(crate) fn proxy(lab: &Lab, args: &[&str]) -> Self {
        Self::proxy_through(lab, &[], args)
    }

    /// Like [`Self::proxy`], started through other programs (`prlimit`, `setpriv`).
    pub(crate) fn proxy_through(lab: &Lab, through: &[&str], args: &[&str]) -> Self {
        let args = [PROXY_ARGS, args].concat();
        let process = Process::start_through(&lab.server, through, BINARY, &args);
        Self(process.wait_listening(&[LISTEN_V4, LISTEN_V6]))
    }

    /// Like [`Self::proxy`], started as user `nobody` with only CAP_NET_RAW and CAP_NET_BIND_SERVICE, as a unit file does.
    pub(crate) fn proxy_as_nobody(lab: &Lab, scratch: &Scratch, args: &[&str]) -> Self {
        let copy = copy_executable(&lab.server, scratch);
        let capabilities = [
            "--inh-caps=+net_raw,+net_bind_service",
            "--ambient-caps=+net_raw,+net_bind_service",
        ];
        let through = [AS_NOBODY, &capabilities].concat();
        let args = [PROXY_ARGS, args].concat();
        let process = Process::start_through(&lab.server, &through, &copy, &args);
        Self(process.wait_listening(&[LISTEN_V4, LISTEN_V6]))
    }

    /// Starts `peername proxy` for UDP with [`PROXY_ARGS`], then `args`, whose `--workers` replaces the usual one.
    pub(crate) fn udp_proxy(lab: &Lab, through: &[&str], args: &[&str]) -> Self {
        let is_workers = |arg: &&str| arg.starts_with("--workers");
        let mut all = PROXY_ARGS.to_vec();
        if args.iter().any(is_workers) {
            all.retain(|arg| !is_workers(arg));
        }
        all.push("--protocol=udp");
        all.extend(args);
        Self(Process::start_through(&lab.server, through, BINARY, &all)).wait_listening_line()
    }

    /// Starts any subcommand that listens, and waits for its log line: sockets are bound a moment before they are read.
    pub(crate) fn start_listening(host: &Host, args: &[&str]) -> Self {
        Self(Process::start(host, BINARY, args)).wait_listening_line()
    }

    /// Sends SIGTERM, waits for a successful exit, and returns the last line of the log: the totals.
    #[track_caller]
    pub(crate) fn stop(&mut self) -> Value {
        self.signal(Signal::TERM);
        self.wait_success(Duration::from_secs(5));
        self.wait_json("with the totals", |line| line["message"] == "stopped")
    }

    /// Sends SIGHUP, and returns the next line of the log that contains `text`.
    #[track_caller]
    pub(crate) fn reload(&self, text: &str) -> String {
        let before = self.count_logged(text);
        self.signal(Signal::HUP);
        wait_for(text, || {
            self.log()
                .lines()
                .filter(|line| line.contains(text))
                .nth(before)
                .map(str::to_owned)
        })
    }

    /// Waits until the sockets listen, and all threads have started and sleep. A measurement after that is one of the
    /// idle proxy.
    pub(crate) fn wait_started(&self) {
        self.wait_logged("listening");
        self.wait_idle();
    }

    /// Accepts at the backend until the proxy opens no more connections: its connection limit is reached, or
    /// no client is left.
    pub(crate) fn accept_until_full(&self, backend: &Backend) -> Vec<Conn> {
        let mut served = Vec::new();
        loop {
            self.wait_idle();
            let before = served.len();
            served.extend(std::iter::from_fn(|| {
                backend.accept_within(Duration::from_millis(1))
            }));
            if served.len() == before {
                return served;
            }
        }
    }

    /// Starts any subcommand that listens, and waits for its sockets.
    pub(crate) fn start(host: &Host, args: &[&str], listens: &[SocketAddr]) -> Self {
        Self::start_through(host, &[], args, listens)
    }

    /// Like [`Self::start`], through other programs.
    pub(crate) fn start_through(
        host: &Host,
        through: &[&str],
        args: &[&str],
        listens: &[SocketAddr],
    ) -> Self {
        Self(Process::start_through(host, through, BINARY, args).wait_listening(listens))
    }

    fn wait_listening_line(self) -> Self {
        self.wait_logged("listening");
        self
    }

    /// Runs any subcommand to its end.
    pub(crate) fn run(host: &Host, args: &[&str]) -> Output {
        Self::run_with_input(host, &[BINARY], args, "")
    }

    /// Runs any subcommand to its end, asserts this exit code, and returns what it printed on standard error.
    #[track_caller]
    pub(crate) fn run_failing(host: &Host, args: &[&str], code: i32) -> String {
        let output = Self::run(host, args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        stderr_text(&output)
    }

    /// Runs a command with these arguments and this standard input to its end; kills it after 20 s. `program` is the
    /// path of the binary, maybe after other programs that it is started through.
    pub(crate) fn run_with_input(
        host: &Host,
        program: &[&str],
        args: &[&str],
        input: &str,
    ) -> Output {
        let mut command = Command::new("timeout");
        command
            .args(["--signal=KILL", "20"])
            .args(program)
            .args(args);
        host.output(&mut command, input)
    }

    /// The logged outcomes of the connections that have ended so far, oldest first.
    pub(crate) fn outcomes(&self) -> Vec<String> {
        let lines = self.json_lines().into_iter();
        lines
            // Warnings have an outcome, too.
            .filter(|line| line["message"] == "connection ended")
            .filter_map(|line| Some(line["outcome"].as_str()?.to_owned()))
            .collect()
    }

    /// Waits until a connection has ended with this outcome.
    #[track_caller]
    pub(crate) fn wait_outcome(&self, outcome: &str) {
        wait_until(outcome, || {
            self.outcomes().iter().any(|seen| seen == outcome)
        });
    }
}

/// The words of a command line.
pub(crate) fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// The user that starts a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    Root,
    /// Without any capability.
    Nobody,
}

pub(crate) const USERS: [User; 2] = [User::Root, User::Nobody];

/// The prefix of a command that runs it as an ordinary user.
pub(crate) const AS_NOBODY: &[&str] = &[
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
];
/// Further options after [`AS_NOBODY`]: remove every capability for good, and end the program with its parent.
pub(crate) const NO_CAPABILITIES: &[&str] =
    &["--inh-caps=-all", "--bounding-set=-all", "--pdeathsig=KILL"];

/// Makes a copy of the binary that an ordinary user may execute, wherever the build directory is. A process
/// of its own writes the copy: a child that another thread starts meanwhile would inherit the open file, and
/// the copy could not be executed (ETXTBSY).
pub(crate) fn copy_executable(host: &Host, scratch: &Scratch) -> String {
    let copy = scratch.path_text("peername");
    host.run("cp", &[BINARY, &copy]);
    copy
}

impl Deref for Peername {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.0
    }
}

impl DerefMut for Peername {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.0
    }
}

/// The binary under test: the one that cargo has built for the tests, unless `make test-static` names another.
pub(crate) const BINARY: &str = match option_env!("PEERNAME_TEST_BINARY") {
    Some(binary) => binary,
    None => env!("CARGO_BIN_EXE_peername"),
};

/// Whether the binary under test is the static one, into which no library can be preloaded.
pub(crate) const IS_STATIC: bool = option_env!("PEERNAME_TEST_BINARY").is_some();

/// The arguments of [`Peername::proxy`].
pub(crate) const PROXY_ARGS: &[&str] = &[
    "proxy",
    "--listen=10.81.0.1:8443",
    "--listen=[fd81::1]:8443",
    "--target-v4=127.0.0.1:9000",
    "--target-v6=[::1]:9000",
    "--trust=10.81.0.0/24",
    "--trust=fd81::/64",
    "--workers=2",
    "--log-format=json",
    "-v",
];

//! Starting the binary under test.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::addr::{LISTEN_V4, LISTEN_V6};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, Lab, Process, Scratch, wait_for};

/// A running `peername`.
#[derive(Debug)]
pub(crate) struct Peername(Process);

impl Peername {
    /// `peername proxy` on the lab's server, with one listener and one target of each family and
    /// trust in the balancer's networks, then `args`.
    pub(crate) fn proxy(lab: &Lab, args: &[&str]) -> Self {
        Self::proxy_through(lab, &[], args)
    }

    /// The same, started through other programs (`prlimit`, `setpriv`).
    pub(crate) fn proxy_through(lab: &Lab, through: &[&str], args: &[&str]) -> Self {
        let args = [PROXY_ARGS, args].concat();
        let process = Process::start_through(&lab.server, through, BINARY, &args);
        Self(process.wait_listening(&[LISTEN_V4, LISTEN_V6]))
    }

    /// `peername proxy` for UDP, with the usual arguments, then `args`.
    pub(crate) fn udp_proxy(lab: &Lab, through: &[&str], args: &[&str]) -> Self {
        let own_workers = args.iter().any(|arg| arg.starts_with("--workers"));
        let usual = PROXY_ARGS.iter().copied();
        let usual = usual.filter(|arg| !(own_workers && arg.starts_with("--workers")));
        let args: Vec<&str> = usual
            .chain(["--protocol=udp"])
            .chain(args.iter().copied())
            .collect();
        Self(Process::start_through(&lab.server, through, BINARY, &args)).wait_listening_line()
    }

    /// Any subcommand that receives datagrams. Its sockets are there a moment before they take any.
    pub(crate) fn start_udp(host: &Host, args: &[&str]) -> Self {
        Self(Process::start(host, BINARY, args)).wait_listening_line()
    }

    /// Ends it and returns the last line of its log: what it has counted.
    #[track_caller]
    pub(crate) fn stop(&mut self) -> Value {
        self.signal(Signal::TERM);
        let ended = self.wait_exit(Duration::from_secs(5));
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
        self.wait_line("with the totals", |line| {
            let line: Value = serde_json::from_str(line).ok()?;
            (line["message"] == "stopped").then_some(line)
        })
    }

    /// Waits until its threads have begun and sleep, as all of its sockets listen before: what is counted then is what
    /// it has when it serves nobody.
    pub(crate) fn wait_started(&self) {
        self.wait_line("that it listens", listening);
        self.wait_idle();
    }

    /// Who is at the backend when no more are let in, because all places are taken or nobody else comes.
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

    fn wait_listening_line(self) -> Self {
        self.wait_line("that it listens", listening);
        self
    }

    /// Any subcommand that listens.
    pub(crate) fn start(host: &Host, args: &[&str], listens: &[SocketAddr]) -> Self {
        Self::start_through(host, &[], args, listens)
    }

    /// The same, started through other programs.
    pub(crate) fn start_through(
        host: &Host,
        through: &[&str],
        args: &[&str],
        listens: &[SocketAddr],
    ) -> Self {
        Self(Process::start_through(host, through, BINARY, args).wait_listening(listens))
    }

    /// Any subcommand that ends by itself, or must.
    pub(crate) fn run(host: &Host, args: &[&str]) -> Output {
        Self::run_with_input(host, &[BINARY], args, "")
    }

    /// The same with this standard input, and started as `program`, which may go through others. What
    /// does not end within 20 s is killed.
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

    /// The outcomes of the connections that have ended so far, oldest first, from its log.
    pub(crate) fn outcomes(&self) -> Vec<String> {
        let outcome = |line: &str| {
            let line: Value = serde_json::from_str(line).ok()?;
            Some(line.get("outcome")?.as_str()?.to_owned())
        };
        self.log().lines().filter_map(outcome).collect()
    }

    /// Waits until one has ended like this.
    #[track_caller]
    pub(crate) fn wait_outcome(&self, outcome: &str) {
        wait_for(outcome, || {
            let seen = self.outcomes().iter().any(|seen| seen == outcome);
            seen.then_some(())
        });
    }
}

/// Starts what follows as an ordinary user.
pub(crate) const AS_NOBODY: &[&str] = &[
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
];
/// Behind [`AS_NOBODY`]: without a way to any capability, and no longer than who has started it.
pub(crate) const NO_CAPABILITIES: &[&str] =
    &["--inh-caps=-all", "--bounding-set=-all", "--pdeathsig=KILL"];

/// A copy that an ordinary user may execute, wherever the build directory is. Written by a process
/// of its own: what a thread of ours starts meanwhile would inherit the open file, which then could
/// not be executed.
pub(crate) fn copy_executable(host: &Host, scratch: &Scratch) -> String {
    let copy = scratch.path_text("peername");
    host.run("cp", &[BINARY, &copy]);
    copy
}

fn listening(line: &str) -> Option<()> {
    line.contains("listening").then_some(())
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

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_peername");

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

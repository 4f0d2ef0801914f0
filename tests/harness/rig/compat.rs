//! The binary under the names of its predecessors.

use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::process::{Command, Output};

use crate::harness::addr::{LISTEN_V4, TARGET_V4};
use crate::harness::backend::Backend;
use crate::harness::lab::{Host, Lab, Process, Scratch, assert_fails};
use crate::harness::peername::BINARY;

/// A directory with links to the binary under the predecessors' names. Commands of their READMEs find the links by PATH.
#[derive(Debug)]
pub(crate) struct CompatRig(pub(crate) Scratch);

impl CompatRig {
    pub(crate) fn new() -> Self {
        let scratch = Scratch::new();
        for name in ["go-mmproxy", "mmproxy", "mmproxy-rs", "udppp"] {
            symlink(BINARY, scratch.path(name)).expect("a link");
        }
        Self(scratch)
    }

    /// Runs commands of a README, one per line, and returns the process of the last one. `sudo` is removed, since the tests
    /// run as root, and PATH finds the links.
    pub(crate) fn start(&self, host: &Host, commands: &str) -> Process {
        self.start_with(host, &[], commands)
    }

    /// Like [`Self::start`], through other programs.
    pub(crate) fn start_with(&self, host: &Host, through: &[&str], commands: &str) -> Process {
        let commands = commands.trim();
        let (earlier, last) = commands.rsplit_once('\n').unwrap_or(("true", commands));
        let last = last.trim().trim_start_matches("sudo ");
        let commands = format!("{earlier}\nexec {last}");
        Process::start_through(host, through, "bash", &["-c", &self.script(&commands)])
    }

    /// Runs commands of a README to their end; they are killed after 20 s.
    pub(crate) fn run(&self, host: &Host, commands: &str) -> Output {
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "20", "bash", "-c", &self.script(commands)]);
        host.output(&mut command, "")
    }

    /// Asserts that a command ends with this exit code, and with this text on standard error.
    #[track_caller]
    pub(crate) fn assert_exits(&self, host: &Host, command: &str, code: i32, text: &str) {
        assert_fails(&self.run(host, command), code, &[text]);
    }

    /// Starts a command between the balancer of a new network and a backend at [`TARGET_V4`].
    pub(crate) fn start_between(&self, command: &str) -> (Lab, Backend, Process) {
        let lab = Lab::new();
        let backend = Backend::listen(&lab.server, TARGET_V4);
        let process = self
            .start(&lab.server, command)
            .wait_listening(&[LISTEN_V4]);
        (lab, backend, process)
    }

    fn script(&self, commands: &str) -> String {
        let here = self.0.path_text("");
        format!(
            "cd {here}\nPATH=$PWD:$PATH\n{}",
            commands.replace("sudo ", "")
        )
    }
}

/// Starts netcat as a server that prints the peer of each connection and the data.
pub(crate) fn start_netcat(host: &Host, command: &str) -> Process {
    let words: Vec<_> = command.split(' ').collect();
    let server = Process::start(host, words[0], &words[1..]);
    server.wait_logged("Listening on");
    server
}

/// The peer of the first connection that netcat reports.
pub(crate) fn first_peer(server: &Process) -> SocketAddr {
    server.wait_line("of a connection", |line| {
        let (_, peer) = line.split_once("Connection received on ")?;
        let (ip, port) = peer.split_once(' ')?;
        crate::harness::addr::from_parts(ip, port)
    })
}

/// Starts a UDP server that tells each client its address.
pub(crate) fn start_address_echo(host: &Host, addr: SocketAddr) -> Process {
    let (ip, port) = (addr.ip().to_string(), addr.port().to_string());
    let server = Process::start(host, "python3", &["-uc", ADDRESS_ECHO, &ip, &port]);
    server.wait_printed("ready");
    server
}

const ADDRESS_ECHO: &str = include_str!("compat/address_echo.py");

pub(crate) fn wait_listening(process: &Process) {
    process.wait_logged("listening");
}

/// The routing rules of path-network's README.
pub(crate) const ROUTES: &str = "
    rule add from 127.0.0.1/8 iif lo table 123
    route add local 0.0.0.0/0 dev lo table 123";
pub(crate) const ROUTES_V6: &str = "
    rule add from ::1/128 iif lo table 123
    route add local ::/0 dev lo table 123";

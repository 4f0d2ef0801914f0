//! A program started by `peername exec`, and what it reports of its clients.

use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use peername_sys::process::pidfd::{PidFd, Signal, descendants};

use super::catalogue::{CommandContext, Program, ReportsTo};
use crate::harness::addr::{LISTEN_V4, LISTEN_V6};
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, OWN_PID_NAMESPACE, Process, Scratch, wait_until};
use crate::harness::peername::copy_executable;
use crate::harness::rig::agent::{Agent, Container};
use crate::harness::rig::exec::built_library;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Preload,
    Notify,
    Netns,
    /// In a container that `peername agent` supervises.
    Agent,
}

impl Mode {
    pub(super) const ALL: [Self; 4] = [Self::Preload, Self::Notify, Self::Netns, Self::Agent];

    fn option(self) -> Option<&'static str> {
        match self {
            Self::Preload => Some("--mode=preload"),
            Self::Notify => Some("--mode=notify"),
            Self::Netns => Some("--mode=netns"),
            Self::Agent => None,
        }
    }
}

/// What a program listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listener {
    /// 0.0.0.0:8443.
    V4,
    /// 0.0.0.0:8443 and [::]:8443, on one socket or on two, as the program prefers.
    Both,
}

/// A program that listens, and the network around it.
pub(super) struct Running<'a> {
    pub(super) program: &'a Program,
    pub(super) mode: Mode,
    pub(super) process: Process,
    pub(super) lab: Lab,
    pub(super) scratch: Scratch,
    /// The name of the program's processes.
    name: String,
    _agent: Option<Agent>,
}

impl<'a> Running<'a> {
    /// Starts a program by this mode. The copy of the binary is in a directory where every user may execute it.
    pub(super) fn start(program: &'a Program, mode: Mode, listener: Listener) -> Self {
        let (lab, scratch) = (Lab::without_routes(), Scratch::new());
        let binary = copy_executable(&lab.server, &scratch);
        let shared = built_library().to_str().expect("text");
        lab.server
            .run("cp", &[shared, &scratch.path_text("libpeername.so")]);
        let command = (program.command)(&CommandContext {
            host: &lab.server,
            scratch: &scratch,
            listener,
        });
        let name = Path::new(&command[0]).file_name().and_then(OsStr::to_str);
        let name = name.expect("a file").to_owned();
        let words = command.iter().map(String::as_str);
        let (process, agent) = match mode.option() {
            Some(option) => {
                let through = [OWN_PID_NAMESPACE, program.through].concat();
                let args: Vec<&str> = ["exec", option]
                    .into_iter()
                    .chain(OPTIONS.iter().copied())
                    .chain(["--"])
                    .chain(words)
                    .collect();
                let process = Process::start_through(&lab.server, &through, &binary, &args);
                (process, None)
            }
            None => {
                let agent = Agent::start_with(OPTIONS);
                // Some programs get a /run of their own by unshare(1); a container has one already.
                let through = match program.through {
                    ["unshare", ..] => &[],
                    through => through,
                };
                let words: Vec<&str> = through.iter().copied().chain(words).collect();
                let container = Container::new("program", &scratch, agent.profile("default"));
                (container.run(&lab.server, &words), Some(agent))
            }
        };
        let listeners = match listener {
            Listener::V4 => &[LISTEN_V4][..],
            Listener::Both => &[LISTEN_V4, LISTEN_V6],
        };
        let process = match mode {
            Mode::Netns => process
                .wait_listening(listeners)
                .wait_listening_in_netns(8443),
            _ => process.wait_listening(listeners),
        };
        Self {
            program,
            mode,
            name,
            process,
            lab,
            scratch,
            _agent: agent,
        }
    }

    /// Sends the header and the client's first data, and asserts that the program reports `client`. The report of an IPv4
    /// client may be an IPv4-mapped address.
    #[track_caller]
    pub(super) fn assert_sees(&self, conn: Conn, header: &[u8], client: SocketAddr) {
        conn.send(&[header, self.program.request].concat());
        let find_client = |line: &str| {
            let (_, after) = line.split_once(self.program.marker)?;
            (address(after)? == client).then_some(())
        };
        match self.program.reports_to {
            ReportsTo::Client => {
                let answer = conn.recv_text_until(|answer| {
                    answer.lines().any(|line| find_client(line).is_some())
                });
                let seen = answer.lines().find_map(find_client);
                let log = self.process.log();
                assert!(
                    seen.is_some(),
                    "{:?}: not {client}: {answer:?}\n{log}",
                    self.mode
                );
            }
            ReportsTo::Log => self.process.wait_line(&format!("of {client}"), find_client),
        }
        drop(conn);
        if self.program.one_at_a_time {
            wait_until("the child has exited", || self.instances().len() == 1);
        }
    }

    /// The processes with the program's name, the first one first. Helpers of peername may come and go.
    pub(super) fn instances(&self) -> Vec<u32> {
        let is_named = |pid: &u32| {
            let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
            comm.is_ok_and(|comm| comm.trim_end() == self.name)
        };
        let mut pids = descendants(self.process.pid());
        pids.retain(is_named);
        pids
    }

    pub(super) fn signal_program(&self, signal: Signal) {
        let program = self.instances()[0];
        let process = PidFd::open(program).expect("the program");
        process.signal(signal).expect("a signal");
    }

    /// Asserts that the connection ends without output.
    #[track_caller]
    pub(super) fn assert_refuses(&self, conn: Conn, header: &[u8]) {
        conn.send(&[header, self.program.request].concat());
        conn.wait_closed();
    }
}

/// Parses `IP PORT`, `IP port PORT`, `IP port=PORT`, `IP:PORT` or `[IP]:PORT`, followed by anything.
fn address(text: &str) -> Option<SocketAddr> {
    let mut words = text
        .split([' ', '\r', '\n'])
        .filter(|word| *word != "port" && !word.is_empty());
    let first = words.next()?;
    let addr: SocketAddr = match first.parse() {
        Ok(addr) => addr,
        Err(_) => {
            let port = words.next()?.trim_start_matches("port=");
            // socat writes an IPv6 address in brackets and in full.
            crate::harness::addr::from_parts(first.trim_matches(['[', ']']), port)?
        }
    };
    Some(SocketAddr::new(addr.ip().to_canonical(), addr.port()))
}

const OPTIONS: &[&str] = &["--ports=8443", "--trust=10.81.0.0/24", "--trust=fd81::/64"];

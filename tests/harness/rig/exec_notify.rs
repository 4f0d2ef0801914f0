//! A program under the supervisor of `--mode notify`, and what it reports about its clients.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, Process, wait_for};
use crate::harness::peername::BINARY;
use crate::harness::rig::exec::{Libc, compiled_server};
use crate::harness::rig::proxy::header_for;

/// A program on the lab's server, run by `peername exec`, that listens on [`LISTEN_V4`].
#[derive(Debug)]
pub(crate) struct NotifyRig {
    pub(crate) process: Process,
    pub(crate) lab: Lab,
}

impl NotifyRig {
    /// Runs a program with these options of `exec` (by default `--mode=notify`), and waits until it listens.
    pub(crate) fn start(options: &[&str], program: &[&str]) -> Self {
        Self::start_through(&[], options, program)
    }

    /// As [`NotifyRig::start`], with `exec` run by another program.
    pub(crate) fn start_through(through: &[&str], options: &[&str], program: &[&str]) -> Self {
        let lab = Lab::new();
        let has_mode = options.iter().any(|option| option.starts_with("--mode"));
        let mode = if has_mode {
            &[][..]
        } else {
            &["--mode=notify"]
        };
        let args = [EXEC, mode, options, &["--"], program].concat();
        let process = Process::start_through(&lab.server, through, BINARY, &args);
        Self {
            process: process.wait_listening(&[LISTEN_V4]),
            lab,
        }
    }

    /// Starts the server of `server.c`, static, with this `--accept`.
    pub(crate) fn start_variant(accept: &str) -> Self {
        let accept = format!("--accept={accept}");
        Self::start(&[], &[&compiled_server(Libc::Static), &accept, "--brief"])
    }

    /// Starts the same server, which ignores SIGTERM.
    pub(crate) fn start_ignoring_sigterm(accept: &str) -> Self {
        let server = compiled_server(Libc::Static);
        let shell = format!("trap '' TERM; exec {server} --accept={accept} --brief");
        Self::start(&[], &["sh", "-c", &shell])
    }

    /// Connects from the balancer and sends these bytes.
    pub(crate) fn connect_and_send(&self, bytes: &[u8]) -> Conn {
        Conn::connect_and_send(&self.lab.balancer, LISTEN_V4, bytes)
    }

    pub(crate) fn supervisor_pid(&self) -> Pid {
        wait_helper_pid("peername-notify", &self.lab.server.network())
    }

    pub(crate) fn monitor_pid(&self) -> Pid {
        wait_helper_pid("peername-guard", &self.lab.server.network())
    }
}

/// Kills all processes in the network of the lab's server: children of the program outlive it, and it has no PID namespace that
/// would end them.
impl Drop for NotifyRig {
    fn drop(&mut self) {
        for pid in processes(&self.lab.server.network()) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Connects from the balancer with this client's header, and sends the greeting that the server waits for.
pub(crate) fn connect_as(lab: &Lab, client: SocketAddr) -> Conn {
    let greeting = [&header_for(client)[..], b"hello"].concat();
    Conn::connect_and_send(&lab.balancer, LISTEN_V4, &greeting)
}

/// Connects for this client, and asserts that the server reports it.
#[track_caller]
pub(crate) fn assert_sees(lab: &Lab, client: SocketAddr) {
    assert_reported(&connect_as(lab, client), client);
}

/// Asserts that the server reports a client whose header comes in two parts, and another client meanwhile.
#[track_caller]
pub(crate) fn assert_sees_late_header(lab: &Lab) {
    let client = fresh_client_v4();
    let header = header_for(client);
    let (first, rest) = header.split_at(9);
    let slow = Conn::connect_and_send(&lab.balancer, LISTEN_V4, first);
    assert_sees(lab, fresh_client_v4());
    slow.send(&[rest, b"hello"].concat());
    assert_reported(&slow, client);
}

/// Asserts that the server reports this client on its connection.
#[track_caller]
pub(crate) fn assert_reported(conn: &Conn, client: SocketAddr) {
    assert_eq!(conn.recv_text_to_end(), brief_report(client));
}

/// The report of `server.c --brief`: the client by accept(2) and by getpeername(2).
pub(crate) fn brief_report(client: SocketAddr) -> String {
    format!("accept {client} getpeername {client}\n")
}

pub(crate) fn kill_pid(pid: Pid) {
    kill_process(pid, Signal::KILL).expect("kill");
}

/// Waits for a helper of `exec` with this process name, in a network namespace in which one program runs.
pub(crate) fn wait_helper_pid(name: &str, network: &Path) -> Pid {
    wait_for(&format!("{name} runs"), || {
        let comm = |pid: &Pid| fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
        let is_named = |pid: &Pid| comm(pid).is_ok_and(|comm| comm.trim() == name);
        processes(network).into_iter().find(is_named)
    })
}

/// The processes in a network namespace.
fn processes(network: &Path) -> Vec<Pid> {
    fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|pid| network_of(pid).as_deref() == Some(network))
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect()
}

/// CPU time, in hundredths of a second (utime and stime, proc_pid_stat(5)).
pub(crate) fn cpu_ticks(pid: Pid) -> u64 {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let stat = fs::read_to_string(path).expect("a process");
    let (_, after_name) = stat.rsplit_once(") ").expect("a name");
    after_name
        .split(' ')
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().expect("a number"))
        .sum()
}

/// The network namespace of a process.
pub(crate) fn network_of(pid: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

/// The path of `http.go`, built once per variant: with cgo it is dynamically linked, without it is static.
pub(crate) fn compiled_go_server(cgo: bool) -> PathBuf {
    static BUILT: [OnceLock<PathBuf>; 2] = [OnceLock::new(), OnceLock::new()];
    let build = || {
        let program = output_path(if cgo { "http-cgo" } else { "http-static" });
        let mut go = Command::new("go");
        go.env("CGO_ENABLED", if cgo { "1" } else { "0" })
            .env("GOFLAGS", "-mod=mod")
            .env("GOPROXY", "off")
            .env("GOTOOLCHAIN", "local")
            .env("GOCACHE", output_path("go-cache"))
            .current_dir(env!("CARGO_TARGET_TMPDIR"));
        run(go
            .arg("build")
            .arg("-o")
            .arg(&program)
            .arg(source("http.go")));
        program
    };
    BUILT[usize::from(cgo)].get_or_init(build).clone()
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error} (make setup)"));
    assert!(output.status.success(), "{command:?}: {output:?}");
}

fn source(name: &str) -> PathBuf {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/exec/notify");
    PathBuf::from(here).join(name)
}

/// A path for a program or the cache that Go writes. Names of programs end with this process's id, so that two test runs do not
/// overwrite each other's; the cache is shared.
fn output_path(name: &str) -> PathBuf {
    let file = match name {
        "go-cache" => name.to_owned(),
        name => format!("{name}-{}", std::process::id()),
    };
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(file)
}

const EXEC: &[&str] = &["exec", "--trust=10.81.0.0/24", "--trust=fd81::/64"];

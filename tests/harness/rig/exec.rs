//! A program started by `peername exec`, and connections to it.

use std::fs;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use peername_sys::process::pidfd::{self, PidFd};
use rustix::process::Pid;

use super::proxy::front_of;
use crate::harness::addr::{LISTEN_V4, LISTEN_V6, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::header_bytes;
use crate::harness::lab::{Lab, OWN_PID_NAMESPACE, Process, Scratch, assert_succeeds};
use crate::harness::peername::{BINARY, copy_executable};

/// The arguments of `peername exec --mode preload`, the program's own included. Without `--trust` among the options,
/// private networks are trusted.
pub(crate) fn exec_args<'a>(options: &[&'a str], program: &[&'a str]) -> Vec<&'a str> {
    args_with_mode(PRELOAD, options, program)
}

fn args_with_mode<'a>(mode: &'a str, options: &[&'a str], program: &[&'a str]) -> Vec<&'a str> {
    built_library();
    let is_trust = |option: &&str| option.starts_with("--trust") || option.starts_with("-t");
    let trust: &[&str] = if options.iter().any(is_trust) {
        &[]
    } else {
        &["--trust=private"]
    };
    [&["exec", mode], trust, options, &["--"], program].concat()
}

/// The server of `server.c`, and the network around it.
pub(crate) struct ServerRig {
    pub(crate) process: Process,
    pub(crate) lab: Lab,
    v6: bool,
}

impl ServerRig {
    /// Starts the server by `--mode preload` with these arguments of `server.c` and these options of `peername exec`.
    pub(crate) fn new(server_args: &str, options: &[&str]) -> Self {
        Self::with_mode(PRELOAD, server_args, options)
    }

    /// Like [`Self::new`], with this `--mode`.
    pub(crate) fn with_mode(mode: &str, server_args: &str, options: &[&str]) -> Self {
        Self::with_mode_through(mode, &[], server_args, options)
    }

    /// Like [`Self::with_mode`]; under notify the server is static, so that no library reaches it.
    pub(crate) fn static_under_notify(mode: &str, server_args: &str, options: &[&str]) -> Self {
        let libc = if mode == NOTIFY {
            Libc::Static
        } else {
            Libc::Glibc
        };
        Self::start(mode, &[], &compiled_server(libc), server_args, options)
    }

    /// Like [`Self::with_mode`], started through other programs.
    pub(crate) fn with_mode_through(
        mode: &str,
        through: &[&str],
        server_args: &str,
        options: &[&str],
    ) -> Self {
        let server = compiled_server(Libc::Glibc);
        Self::start(mode, through, &server, server_args, options)
    }

    /// Starts this server, in a PID namespace that ends with the test.
    pub(crate) fn start(
        mode: &str,
        through: &[&str],
        server: &str,
        server_args: &str,
        options: &[&str],
    ) -> Self {
        let lab = Lab::without_routes();
        let words: Vec<&str> = std::iter::once(server)
            .chain(server_args.split(' '))
            .collect();
        let args = args_with_mode(mode, options, &words);
        let through = [OWN_PID_NAMESPACE, through].concat();
        let process = Process::start_through(&lab.server, &through, BINARY, &args);
        let v6 = words.contains(&"--family=6");
        let listener = if v6 { LISTEN_V6 } else { LISTEN_V4 };
        Self {
            process: process.wait_listening(&[listener]),
            lab,
            v6,
        }
    }

    /// A server of `server.c` on IPv4 that is running already.
    pub(crate) fn from_process(process: Process, lab: Lab) -> Self {
        Self {
            process,
            lab,
            v6: false,
        }
    }

    /// The address by which a socket of the server's family shows this IPv4 client.
    pub(crate) fn shown_as(&self, client: SocketAddr) -> SocketAddr {
        if self.v6 { mapped_ipv6(client) } else { client }
    }

    /// Opens a connection from the balancer that begins with these bytes.
    pub(crate) fn connect_and_send(&self, bytes: &[u8]) -> Conn {
        Conn::connect_and_send(&self.lab.balancer, LISTEN_V4, bytes)
    }

    /// Sends a header and a greeting, and returns the server's report of its client.
    #[track_caller]
    pub(crate) fn report_for(&self, header: &[u8]) -> String {
        let conn = self.connect_and_send(&[header, b"hello"].concat());
        self.recv_report(&conn)
    }

    /// Asserts that the server reports a fresh client.
    #[track_caller]
    pub(crate) fn assert_serves(&self) {
        let client = fresh_client_v4();
        self.assert_report(&self.report_for(&v2(client)), client);
    }

    /// Receives the server's report, to the end of the connection.
    #[track_caller]
    pub(crate) fn recv_report(&self, conn: &Conn) -> String {
        let (report, _) = conn.recv_to_end();
        let report = String::from_utf8(report).expect("text");
        assert!(report.ends_with('\n'), "{report:?}\n{}", self.process.log());
        report
    }

    /// Asserts that the server reports this client, by every call that returns an address.
    #[track_caller]
    pub(crate) fn assert_sees(&self, conn: &Conn, client: SocketAddr) {
        self.assert_report(&self.recv_report(conn), client);
    }

    /// Asserts that a report of the server names this client for each call.
    #[track_caller]
    pub(crate) fn assert_report(&self, report: &str, client: SocketAddr) {
        let words: Vec<&str> = report.split_ascii_whitespace().collect();
        let (pairs, rest) = words.as_chunks::<2>();
        assert!(pairs.len() >= 2 && rest.is_empty(), "{report}");
        for [call, result] in pairs {
            match *call {
                "truncation" => assert_eq!(*result, "right", "{report}"),
                _ => assert_eq!(result.parse(), Ok(client), "{call}: {report}"),
            }
        }
    }
}

/// Any program that listens on [`LISTEN_V4`], started by a copy of the binary that every user may execute.
pub(crate) struct ProgramRig {
    pub(crate) process: Process,
    pub(crate) lab: Lab,
    _scratch: Scratch,
}

impl ProgramRig {
    /// Asserts that the program gets no connection that begins with these bytes, which are no header.
    #[track_caller]
    pub(crate) fn assert_refused(&self, bytes: &[u8]) {
        let conn = Conn::connect_and_send(&self.lab.balancer, LISTEN_V4, bytes);
        assert_eq!(conn.recv_text_to_end(), "", "{}", self.process.log());
    }

    pub(crate) fn start(program: &[&str]) -> Self {
        Self::with_options(&[], program)
    }

    pub(crate) fn with_options(options: &[&str], program: &[&str]) -> Self {
        Self::with_mode(PRELOAD, options, program)
    }

    pub(crate) fn with_mode(mode: &str, options: &[&str], program: &[&str]) -> Self {
        Self::launch(Lab::without_routes(), mode, options, program)
    }

    /// Like [`Self::with_options`], in a lab that has other processes.
    pub(crate) fn start_in(lab: Lab, options: &[&str], program: &[&str]) -> Self {
        Self::launch(lab, PRELOAD, options, program)
    }

    fn launch(lab: Lab, mode: &str, options: &[&str], program: &[&str]) -> Self {
        let args = args_with_mode(mode, options, program);
        let scratch = Scratch::new();
        let copy = copy_executable(&lab.server, &scratch);
        let library = built_library().to_str().expect("text");
        lab.server
            .run("cp", &[library, &scratch.path_text("libpeername.so")]);
        let process = Process::start_through(&lab.server, OWN_PID_NAMESPACE, &copy, &args);
        Self {
            process: process.wait_listening(&[LISTEN_V4]),
            lab,
            _scratch: scratch,
        }
    }
}

/// A v2 header of a client that connected to the frontend of its family.
pub(crate) use super::proxy::header_for as v2;

/// A v1 header of a client that connected to the frontend of its family.
pub(crate) fn v1(client: SocketAddr) -> Vec<u8> {
    header_bytes::v1(client, front_of(client))
}

/// The address by which an IPv6 socket shows this client.
pub(crate) fn mapped_ipv6(client: SocketAddr) -> SocketAddr {
    match client {
        SocketAddr::V4(v4) => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
        SocketAddr::V6(_) => client,
    }
}

/// The pseudo-address by which an IPv4 socket shows an IPv6 client, computed here independently: FNV-1a of
/// the /64, folded to 28 bits.
pub(crate) fn pseudo_ipv4(client: Ipv6Addr) -> std::net::Ipv4Addr {
    let hash = client.octets()[..8]
        .iter()
        .fold(2_166_136_261_u32, |hash, &byte| {
            (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
        });
    std::net::Ipv4Addr::from_bits(0xf000_0000 | ((hash ^ hash >> 28) & 0x0fff_ffff))
}

/// The server itself: the first descendant of the process that made its PID namespace.
pub(crate) fn server_pidfd(process: &Process) -> PidFd {
    let children = pidfd::descendants(process.pid());
    PidFd::open(*children.first().expect("a server")).expect("a server")
}

/// Finds the header waiter of a program started here. It is the process in the same network namespace that still has the
/// launcher's command line; the program itself has another one since execve(2).
pub(crate) fn header_waiter_pid(process: &Process) -> Pid {
    let is_header_waiter = |pid: u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let network = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let first = words.split(|&byte| byte == 0).next();
        first.is_some_and(|path| path.ends_with(b"/peername"))
            && network(pid) == network(process.pid())
    };
    let pid = fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .find(|&pid| is_header_waiter(pid))
        .expect("a header waiter");
    Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid")
}

pub(crate) const PRELOAD: &str = "--mode=preload";
pub(crate) const NOTIFY: &str = "--mode=notify";
/// The modes that leave the program in the host's network.
pub(crate) const MODES: [&str; 2] = [PRELOAD, NOTIFY];

/// The C library that a test program is linked with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Libc {
    Glibc,
    Musl,
    /// glibc's, without a dynamic linker.
    Static,
}

/// The path of `server.c`, compiled.
pub(crate) fn compiled_server(libc: Libc) -> String {
    static BUILT: [OnceLock<String>; 3] = [const { OnceLock::new() }; 3];
    let build = || compile("harness/rig/exec/server.c", "exec-server", libc, &[]);
    BUILT[libc as usize].get_or_init(build).clone()
}

/// Compiles a test program. Call it once for each name: threads would write the same file.
pub(crate) fn compile(source: &str, name: &str, libc: Libc, options: &[&str]) -> String {
    let (compiler, linked, suffix) = match libc {
        Libc::Glibc => ("gcc", "-pie", ""),
        Libc::Musl => ("musl-gcc", "-pie", "-musl"),
        Libc::Static => ("gcc", "-static", "-static"),
    };
    let source = format!("{}/../../tests/{source}", env!("CARGO_MANIFEST_DIR"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}{suffix}"));
    let target = target.to_str().expect("text").to_owned();
    let mut command = Command::new(compiler);
    command.args(["-O1", "-Wall", "-Werror", "-fPIE", "-pthread", linked]);
    command.args(options).args(["-o", &target, &source]);
    assert_succeeds(&command.output().expect("a compiler (make setup)"));
    target
}

/// The path of the server's library. It is built as it is shipped, and is beside the binary under test, which searches there.
pub(crate) fn built_library() -> &'static Path {
    &libraries()[0]
}

/// The path of the client's library (`--connect`).
pub(crate) fn built_connect_library() -> &'static Path {
    &libraries()[1]
}

fn libraries() -> &'static [PathBuf; 2] {
    static BUILT: OnceLock<[PathBuf; 2]> = OnceLock::new();
    BUILT.get_or_init(|| {
        let directory = Path::new(BINARY).parent().expect("a directory");
        let target = directory.parent().expect("the target directory");
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let output = Command::new(cargo)
            .args(["build", "--quiet", "--locked", "--profile=dist"])
            .args(["--package", "peername-preload"])
            .args(["--package", "peername-preload-connect"])
            .args(["--features", "freestanding"])
            .arg("--target-dir")
            .arg(target)
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .output()
            .expect("cargo");
        assert!(output.status.success(), "{output:?}");
        let names = [
            ("libpeername_preload.so", "libpeername.so"),
            ("libpeername_preload_connect.so", "libpeername_connect.so"),
        ];
        names.map(|(built, installed)| {
            // Replaced by rename, so that a program that has the old file loaded keeps it whole.
            let (temporary, path) = (
                directory.join(format!(".{installed}")),
                directory.join(installed),
            );
            fs::copy(target.join("dist").join(built), &temporary).expect("a copy");
            fs::rename(&temporary, &path).expect("a rename");
            path
        })
    })
}

//! Services for a check to ask, each in a process of its own on the host that the test starts it from.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::wait_for;

/// A service that prints each request, and reads from a line what to answer.
pub(crate) struct Service {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// The answer that was set last.
    answer: String,
    pub(crate) address: SocketAddr,
}

impl Service {
    /// The ext_authz server.
    pub(crate) fn ext_authz(address: SocketAddr) -> Self {
        Self::ext_authz_with(&[&address.to_string()])
    }

    /// The same at an address or a Unix socket, with the files for TLS.
    pub(crate) fn ext_authz_with(args: &[&str]) -> Self {
        Self::start(Command::new(tool("ext_authz")).args(args))
    }

    /// The forwardAuth service.
    pub(crate) fn forward_auth(address: SocketAddr) -> Self {
        let script = source("forward_auth.py");
        Self::start(Command::new("python3").arg(script).arg(address.to_string()))
    }

    fn start(command: &mut Command) -> Self {
        let mut child = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok);
            lines.map(|line| sender.send(line)).all(|sent| sent.is_ok())
        });
        let mut service = Self {
            child,
            input,
            lines,
            answer: String::new(),
            address: any_loopback(),
        };
        let first = service.line();
        let address = first.strip_prefix("listening ").expect("where it listens");
        // A Unix socket has none.
        service.address = address.parse().unwrap_or(service.address);
        service
    }

    /// Sets the answer from now on. Requests before this call are forgotten.
    pub(crate) fn set_answer(&mut self, answer: &str) {
        self.answer = answer.replace('\n', " ");
        writeln!(self.input, "{}", self.answer).expect("it reads");
        while self.line() != "set" {}
    }

    /// Waits for the next request.
    pub(crate) fn next_request(&self) -> Value {
        serde_json::from_str(&self.line()).expect("JSON")
    }

    /// Counts the requests since the last call.
    pub(crate) fn count_requests(&mut self) -> usize {
        // The service confirms the repeated answer after all requests so far.
        writeln!(self.input, "{}", self.answer).expect("it reads");
        let lines = std::iter::from_fn(|| Some(self.line()));
        lines.take_while(|line| line != "set").count()
    }

    fn line(&self) -> String {
        match self.lines.recv_timeout(SOON) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the service prints nothing"),
            Err(RecvTimeoutError::Disconnected) => panic!("the service has ended"),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// OPA with one policy; its decision log holds what it was asked.
pub(crate) struct Opa {
    child: Child,
    pub(crate) address: SocketAddr,
    decisions: PathBuf,
    directory: Directory,
}

impl Opa {
    pub(crate) fn start(policy: &str) -> Self {
        Self::start_at(unused_address(), policy)
    }

    pub(crate) fn start_at(address: SocketAddr, policy: &str) -> Self {
        Self::start_with(address, policy, &[])
    }

    /// The same, with further options.
    pub(crate) fn start_with(address: SocketAddr, policy: &str, settings: &[&str]) -> Self {
        let mut opa = Self::start_on(&address.to_string(), policy, settings);
        wait_for("OPA listens", || TcpStream::connect(address).ok());
        opa.address = address;
        opa
    }

    /// The same at an address or a URL of OPA's; it does not listen yet.
    pub(crate) fn start_on(address: &str, policy: &str, settings: &[&str]) -> Self {
        let directory = Directory::new();
        let (file, decisions) = (directory.0.join("policy.rego"), directory.0.join("log"));
        std::fs::write(&file, policy).expect("write the policy");
        let log = std::fs::File::create(&decisions).expect("create the log");
        let child = spawn(
            Command::new(tool("opa"))
                .args([
                    "run",
                    "--server",
                    "--disable-telemetry",
                    "--log-level=error",
                ])
                .args(["--set=decision_logs.console=true", "--addr", address])
                .args(settings)
                .arg(file)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log),
        );
        Self {
            child,
            address: any_loopback(),
            decisions,
            directory,
        }
    }

    /// The file of its policy.
    pub(crate) fn policy(&self) -> PathBuf {
        self.directory.0.join("policy.rego")
    }

    /// Waits for the latest input that OPA has logged.
    pub(crate) fn wait_decision(&self) -> Value {
        self.wait_decision_about(|_| true)
    }

    /// Waits for the latest input that `which` accepts.
    pub(crate) fn wait_decision_about(&self, which: impl Fn(&Value) -> bool) -> Value {
        let mut entry = self.wait_entry(|entry| entry.get("input").is_some_and(&which));
        entry["input"].take()
    }

    /// Waits for the latest entry of the decision log that `which` accepts.
    pub(crate) fn wait_entry(&self, which: impl Fn(&Value) -> bool) -> Value {
        wait_for("OPA logs its decision", || {
            let log = std::fs::read_to_string(&self.decisions).ok()?;
            let entries = log
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            entries.rev().find(&which)
        })
    }
}

impl Drop for Opa {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A temporary directory, removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let name = format!(
            "peername-check-{}-{:?}",
            std::process::id(),
            thread::current().id()
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("create a directory");
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn spawn(command: &mut Command) -> Child {
    let child = command.spawn();
    child.unwrap_or_else(|error| panic!("{command:?}: {error}; make setup"))
}

/// The path of a tool that `make setup` has built, beside the directory of this test's profile.
pub(crate) fn tool(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("our own path");
    let target = test.ancestors().nth(3).expect("target/PROFILE/deps/TEST");
    target.join("tools").join(name)
}

fn source(name: &str) -> PathBuf {
    Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/harness/check"
    ))
    .join(name)
}

/// Loopback, and any port.
pub(crate) fn any_loopback() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// Returns an address without a listener, another one at every call. Its port is outside the range that the
/// kernel assigns from, so no other test gets it before it is bound.
pub(crate) fn unused_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let port = 20_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 10_000;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// Long enough for a busy machine.
const SOON: Duration = Duration::from_secs(20);

//! Check services that are processes, on the host (network namespace) of the thread that starts them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use super::wait_for;

/// A service that prints each request, and reads a line with what to answer from then on.
pub(crate) struct Service {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// The answer that was set last.
    answer: String,
    pub(crate) address: SocketAddr,
}

impl Service {
    /// Starts the ext_authz server.
    pub(crate) fn ext_authz(address: SocketAddr) -> Self {
        Self::ext_authz_with(&[&address.to_string()])
    }

    /// Starts the ext_authz server with these arguments: an address or `unix:PATH`, then the files for TLS.
    pub(crate) fn ext_authz_with(args: &[&str]) -> Self {
        Self::start(Command::new(tool("ext_authz")).args(args))
    }

    /// Starts the forwardAuth service.
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
            let mut lines = output.lines().map_while(Result::ok);
            lines.all(|line| sender.send(line).is_ok())
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
        // A service on a Unix socket prints a path.
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

    /// Counts the requests that no earlier call of this or of [`Self::next_request`] has returned.
    pub(crate) fn count_requests(&mut self) -> usize {
        // The service prints `set` for the repeated answer, after the lines of all requests so far.
        writeln!(self.input, "{}", self.answer).expect("it reads");
        let mut requests = 0;
        while self.line() != "set" {
            requests += 1;
        }
        requests
    }

    /// Waits for the next line that the service prints.
    fn line(&self) -> String {
        match self.lines.recv_timeout(LINE_TIMEOUT) {
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

/// OPA with one policy. Its decision log has the input of each query.
pub(crate) struct Opa {
    child: Child,
    pub(crate) address: SocketAddr,
    decisions: PathBuf,
    directory: TempDir,
}

impl Opa {
    pub(crate) fn start(policy: &str) -> Self {
        Self::start_at(unused_address(), policy)
    }

    pub(crate) fn start_at(address: SocketAddr, policy: &str) -> Self {
        Self::start_with(address, policy, &[])
    }

    /// Like [`Self::start_at`], with further options of OPA.
    pub(crate) fn start_with(address: SocketAddr, policy: &str, options: &[&str]) -> Self {
        let mut opa = Self::start_on(&address.to_string(), policy, options);
        wait_for("OPA listens", || TcpStream::connect(address).ok());
        opa.address = address;
        opa
    }

    /// Starts OPA with this `--addr`, an address or a URL such as `unix://PATH`; does not wait until it listens.
    pub(crate) fn start_on(address: &str, policy: &str, options: &[&str]) -> Self {
        let directory = tempdir().expect("create a directory");
        let file = directory.path().join("policy.rego");
        let decisions = directory.path().join("log");
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
                .args(options)
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
        self.directory.path().join("policy.rego")
    }

    /// Waits for a decision in the log, and returns the input of the latest one.
    pub(crate) fn wait_decision(&self) -> Value {
        self.wait_decision_about(|_| true)
    }

    /// Waits for a decision whose input `is_wanted` accepts, and returns the latest such input.
    pub(crate) fn wait_decision_about(&self, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let mut entry = self.wait_entry(|entry| entry.get("input").is_some_and(&is_wanted));
        entry["input"].take()
    }

    /// Waits for an entry of the decision log that `is_wanted` accepts, and returns the latest such entry.
    pub(crate) fn wait_entry(&self, is_wanted: impl Fn(&Value) -> bool) -> Value {
        wait_for("OPA logs its decision", || {
            let log = std::fs::read_to_string(&self.decisions).ok()?;
            log.lines()
                .rev()
                .filter_map(|line| serde_json::from_str(line).ok())
                .find(&is_wanted)
        })
    }
}

impl Drop for Opa {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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

/// Far above what a service takes on a busy machine.
const LINE_TIMEOUT: Duration = Duration::from_secs(20);

//! Services in processes of their own, and questions for them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use peername_intercept::check::{
    Authority, Check, CheckConfig, Client, Kind, Prefix, Question, Verdict,
};
use prometheus_client::registry::Registry;
use serde_json::Value;

/// A service that prints what it is asked, and is told by a line what to answer.
pub(crate) struct Service {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    pub(crate) address: SocketAddr,
}

impl Service {
    /// The ext_authz server.
    pub(crate) fn ext_authz(address: SocketAddr) -> Self {
        Self::start(Command::new(tool("ext_authz")).arg(address.to_string()))
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
            address: any(),
        };
        let first = service.line();
        let address = first.strip_prefix("listening ").expect("where it listens");
        service.address = address.parse().expect("an address");
        service
    }

    /// What it answers from now on. What it was asked before is forgotten.
    pub(crate) fn answers(&mut self, answer: &str) {
        writeln!(self.input, "{}", answer.replace('\n', " ")).expect("it reads");
        while self.line() != "set" {}
    }

    /// What it was asked next.
    pub(crate) fn asked(&self) -> Value {
        serde_json::from_str(&self.line()).expect("JSON")
    }

    /// How often it was asked since the last look.
    pub(crate) fn times(&self) -> usize {
        // It prints before it answers, and the thread that reads is as good as there.
        thread::sleep(Duration::from_millis(100));
        self.lines.try_iter().count()
    }

    fn line(&self) -> String {
        match self.lines.recv_timeout(SOON) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the service says nothing"),
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

/// OPA with one policy, which says in its decision log what it was asked.
pub(crate) struct Opa {
    child: Child,
    pub(crate) address: SocketAddr,
    decisions: PathBuf,
    _directory: Directory,
}

impl Opa {
    pub(crate) fn with(policy: &str) -> Self {
        let directory = Directory::new();
        let (file, decisions) = (directory.0.join("policy.rego"), directory.0.join("log"));
        std::fs::write(&file, policy).expect("write the policy");
        let address = free();
        let log = std::fs::File::create(&decisions).expect("create the log");
        let child = spawn(
            Command::new(tool("opa"))
                .args([
                    "run",
                    "--server",
                    "--disable-telemetry",
                    "--log-level=error",
                ])
                .args([
                    "--set=decision_logs.console=true",
                    "--addr",
                    &address.to_string(),
                ])
                .arg(file)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log),
        );
        let opa = Self {
            child,
            address,
            decisions,
            _directory: directory,
        };
        wait_for("OPA listens", || TcpStream::connect(address).ok());
        opa
    }

    /// The last input that it decided about, as it logged it.
    pub(crate) fn decided(&self) -> Value {
        wait_for("OPA logs its decision", || {
            let log = std::fs::read_to_string(&self.decisions).ok()?;
            let entries = log
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            entries
                .filter_map(|mut entry| Some(entry.get_mut("input")?.take()))
                .next_back()
        })
    }
}

impl Drop for Opa {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory that is gone afterwards.
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

/// What `make setup` has built: beside the directory of the profile that this test is of.
fn tool(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("our own path");
    let target = test.ancestors().nth(3).expect("target/PROFILE/deps/TEST");
    target.join("tools").join(name)
}

fn source(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/check")).join(name)
}

/// Loopback, and whichever port.
pub(crate) fn any() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// An address that nobody listens on.
pub(crate) fn free() -> SocketAddr {
    let listener = TcpListener::bind(any()).expect("bind");
    listener.local_addr().expect("its address")
}

/// A check with the defaults, changed by `change`.
pub(crate) fn check(url: &str, change: impl FnOnce(&mut CheckConfig)) -> Check {
    let mut config = CheckConfig::new(url.parse().expect("a URL"));
    change(&mut config);
    Check::new(config).expect("a configuration")
}

/// Its client, when there is one worker.
pub(crate) fn client(url: &str) -> Client {
    check(url, |_| ()).client()
}

/// What a check counts under a name and labels, as the text says that is scraped.
pub(crate) fn counted(check: &Check, sample: &str) -> u64 {
    let mut registry = Registry::default();
    check.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("encode");
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().expect("a number"))
}

/// A request, to be asked about.
pub(crate) struct Asking {
    pub(crate) kind: Kind,
    pub(crate) client: SocketAddr,
    pub(crate) method: Method,
    pub(crate) scheme: &'static str,
    pub(crate) host: &'static str,
    pub(crate) port: u16,
    pub(crate) path: &'static str,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<(Bytes, bool)>,
    pub(crate) user: Option<&'static str>,
}

impl Default for Asking {
    fn default() -> Self {
        Self {
            kind: Kind::Request,
            client: ([192, 0, 2, 7], 50_000).into(),
            method: Method::GET,
            scheme: "https",
            host: "origin.test",
            port: 443,
            path: "/a?b=c",
            headers: HeaderMap::new(),
            body: None,
            user: None,
        }
    }
}

impl Asking {
    pub(crate) fn header(mut self, name: &'static str, value: &[u8]) -> Self {
        let value = HeaderValue::from_bytes(value).expect("a value");
        self.headers.append(HeaderName::from_static(name), value);
        self
    }

    pub(crate) async fn of(&self, client: &Client) -> Verdict {
        let body = self.body.as_ref();
        let question = Question {
            kind: self.kind,
            request_id: "id-1",
            client: self.client,
            peer: ([198, 51, 100, 1], 40_000).into(),
            connect: Some(Authority {
                host: self.host,
                port: self.port,
            }),
            sni: Some(self.host),
            alpn: Some("h2"),
            version: Version::HTTP_2,
            method: &self.method,
            scheme: self.scheme,
            to: Authority {
                host: self.host,
                port: self.port,
            },
            path_and_query: self.path,
            headers: &self.headers,
            body_size: body.map(|(bytes, _)| bytes.len() as u64),
            body: body.map(|(bytes, truncated)| Prefix {
                bytes,
                truncated: *truncated,
            }),
            user: self.user,
        };
        client.ask(&question).await
    }
}

/// Asks about any request.
pub(crate) async fn ask(client: &Client) -> Verdict {
    Asking::default().of(client).await
}

/// Waits for what should happen, not for time to pass.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + SOON;
    loop {
        match look() {
            Some(seen) => return seen,
            None if Instant::now() > give_up => panic!("{what}: not within {SOON:?}"),
            None => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Long enough for a busy machine.
const SOON: Duration = Duration::from_secs(20);

//! A container that accepts one connection with a header, in a network of its own.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use peername_daemon::usage::error_text::with_causes;
use peername_observe::shell::command_line;
use peername_proto::write_v1;
use peername_server::header_limits::HeaderLimits;
use peername_sys::netlink::make_every_address_local;
use peername_sys::process::namespace::{NetworkNamespace, allow_unprivileged_ports};
use serde_json::{Map, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::timeout;

use super::accept_one::{ACCEPTED, LISTENING};
use super::bounded_command::{output_within, read_until, spawn};
use super::bundle::Bundle;
use super::runtimes::Runtime;
use crate::finding::Finding;

/// The trial of a container with this profile: its server listens on this port and gets a connection from the balancer.
pub struct Trial<'a> {
    /// The seccomp profile, as JSON.
    pub profile: &'a Map<String, Value>,
    /// The source of the connection; 127.0.0.1 if none is given.
    pub balancer: Option<IpAddr>,
    /// The port on which the server listens.
    pub port: u16,
}

/// How a trial has ended.
enum Outcome {
    /// The server has seen this peer.
    Seen(String),
    /// The connection was closed, and the server has not accepted it.
    Refused,
    /// The connection is open, and the server's accept(2) has not returned it.
    NotAccepted,
    /// The server has not called listen(2), or listen(2) has not returned.
    NotListening,
    /// The runtime has exited before the server listened, with this message.
    RuntimeFailed(String),
    /// The server has reported this error.
    ServerFailed(String),
    /// The trial could not be made, for this reason.
    NotTried(String),
}

/// The outcome of a trial, and what it has left behind.
struct Completed {
    outcome: Outcome,
    leftover: Option<Leftover>,
}

/// A container that could not be removed, and may still run.
struct Leftover {
    reason: String,
    /// The command that removes the container.
    delete: String,
    folder: String,
}

impl Trial<'_> {
    /// Runs a container, connects to it, and judges what its server sees.
    pub fn run(&self, runtime: &Runtime) -> Vec<Finding> {
        // The network namespace of the trial is that of a thread of its own, so this process keeps its network.
        let completed = thread::scope(|scope| {
            scope
                .spawn(|| self.try_container(runtime))
                .join()
                .unwrap_or_else(|_| Err(anyhow!("the trial has panicked")))
        });
        let completed = completed.unwrap_or_else(|error| Completed {
            outcome: Outcome::not_tried(&error),
            leftover: None,
        });
        let check = runtime.kind.container;
        let leftover = completed.leftover.map(|leftover| leftover.finding(check));
        let finding = self.judge(check, completed.outcome);
        [finding].into_iter().chain(leftover).collect()
    }

    fn judge(&self, check: &'static str, outcome: Outcome) -> Finding {
        let (balancer, port) = (self.source(), self.port);
        let client = self.client_addr();
        match outcome {
            Outcome::Seen(peer) if peer == client.to_string() => Finding::ok(
                check,
                format!("its server sees {client}, the client of a header from {balancer}"),
            ),
            Outcome::Seen(peer) => Finding::fail(
                check,
                format!(
                    "its server sees {peer}, not {client}, the client of a header from {balancer}"
                ),
                format!(
                    "add {port} to `ports` of the policy, and {balancer} to its `trust`; --port and --balancer name others"
                ),
            ),
            Outcome::Refused if self.balancer.is_none() => Finding::warn(
                check,
                format!(
                    "the agent supervises the container, and refuses its connection from {balancer}"
                ),
                "name your balancer by --balancer, and the port of your server by --port",
            ),
            Outcome::Refused => Finding::fail(
                check,
                format!("the agent refuses its connection from {balancer} with a header"),
                format!(
                    "add {balancer} to `trust` of the policy; the agent's log has the reason (`journalctl -u peername-agent`)"
                ),
            ),
            Outcome::NotAccepted => Finding::fail(
                check,
                format!("its accept(2) does not return the connection from {balancer}"),
                "see the agent's log (`journalctl -u peername-agent`)",
            ),
            Outcome::NotListening => Finding::fail(
                check,
                format!(
                    "its server does not listen {STARTS_WITHIN:?} after its start: the runtime has not started it, or the agent does \
                     not answer its listen(2)"
                ),
                "see the agent's log (`journalctl -u peername-agent`); try again if this host is busy",
            ),
            Outcome::NotTried(reason) => Finding::broken(check, reason),
            Outcome::ServerFailed(report) => Finding::fail(
                check,
                format!("its server can't accept: {report}"),
                "see the agent's log (`journalctl -u peername-agent`)",
            ),
            Outcome::RuntimeFailed(reason) => Finding::fail(
                check,
                reason,
                "this is the runtime's own error; if it names the agent's socket or seccomp, see \"When it does not work\" in docs/agent.md; \
                 else run a container of your own by this runtime without the profile",
            ),
        }
    }

    fn try_container(&self, runtime: &Runtime) -> anyhow::Result<Completed> {
        NetworkNamespace::unshare()?;
        // bind(2) takes an IPv6 address only if an interface has it.
        let balancer = self.balancer.filter(|ip| !ip.is_loopback());
        make_every_address_local(balancer.as_slice())?;
        allow_unprivileged_ports()?;
        let port = self.port.to_string();
        let family = self.source().is_ipv6().then_some("--v6");
        let arguments = ["doctor", "accept-one", &port].into_iter().chain(family);
        let bundle = Bundle::create(runtime.kind.name, arguments, self.profile)?;
        let mut container = Container::start(runtime, bundle)?;
        let outcome = self.connect_to(&mut container);
        Ok(Completed {
            outcome: outcome.unwrap_or_else(|error| Outcome::not_tried(&error)),
            leftover: container.remove().err(),
        })
    }

    fn connect_to(&self, container: &mut Container<'_>) -> anyhow::Result<Outcome> {
        match container.wait_listening() {
            Ok(true) => {}
            Ok(false) => return Ok(container.wait_failure()),
            Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(Outcome::NotListening),
            Err(error) => return Err(error).context("reading its server's output"),
        }
        let closed = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(self.connect());
        match (container.wait_peer(), closed) {
            (Some(peer), _) => Ok(Outcome::Seen(peer)),
            (None, Ok(())) => Ok(Outcome::Refused),
            (None, Err(error)) if error.kind() == ErrorKind::TimedOut => Ok(Outcome::NotAccepted),
            (None, Err(error)) => Err(error).context(format!("connecting from {}", self.source())),
        }
    }

    /// Connects as the balancer does, sends a header, and waits until the connection is closed.
    async fn connect(&self) -> io::Result<()> {
        let source = SocketAddr::new(self.source(), 0);
        let socket = if source.is_ipv6() {
            TcpSocket::new_v6()?
        } else {
            TcpSocket::new_v4()?
        };
        socket.bind(source)?;
        let (client, server) = (self.client_addr(), self.server_addr());
        let mut header = Vec::new();
        write_v1(&mut header, client, server);
        let send_and_wait = async {
            let mut stream = socket.connect(server).await?;
            stream.write_all(&header).await?;
            stream.read(&mut [0]).await
        };
        let accepts_within = HeaderLimits::default().timeout + ACCEPT_MARGIN;
        match timeout(accepts_within, send_and_wait).await {
            // A reset ends the connection, too. The agent may send it before the header has come.
            Ok(Err(error)) if !is_closed(&error) => Err(error),
            Ok(_) => Ok(()),
            Err(_) => Err(ErrorKind::TimedOut.into()),
        }
    }

    fn source(&self) -> IpAddr {
        self.balancer.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// The client in the header. This address and the server's are for documentation: in the trial's network namespace every
    /// address is local.
    fn client_addr(&self) -> SocketAddr {
        let ip: IpAddr = match self.source() {
            IpAddr::V4(_) => Ipv4Addr::new(203, 0, 113, 7).into(),
            IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7).into(),
        };
        SocketAddr::new(ip, 40_000)
    }

    fn server_addr(&self) -> SocketAddr {
        let ip: IpAddr = match self.source() {
            IpAddr::V4(_) => Ipv4Addr::new(198, 51, 100, 1).into(),
            IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        };
        SocketAddr::new(ip, self.port)
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}

impl Outcome {
    fn not_tried(error: &anyhow::Error) -> Self {
        Self::NotTried(with_causes(error))
    }
}

impl Leftover {
    fn finding(&self, check: &'static str) -> Finding {
        let Self {
            reason,
            delete,
            folder,
        } = self;
        Finding::warn(
            check,
            format!("it could not be removed: {reason}"),
            format!("`{delete}`, and remove {folder}"),
        )
    }
}

/// A container that runs, until it is removed.
struct Container<'a> {
    runtime: &'a Runtime,
    bundle: Bundle,
    process: Child,
    /// What its server has printed so far.
    printed: Vec<u8>,
}

impl<'a> Container<'a> {
    fn start(runtime: &'a Runtime, bundle: Bundle) -> anyhow::Result<Self> {
        let mut command = runtime_command(runtime, &bundle);
        command.arg("run").arg("--bundle").arg(&bundle.folder);
        let process = spawn(command.arg(&bundle.id))
            .with_context(|| format!("starting {}", runtime.path.display()))?;
        Ok(Self {
            runtime,
            process,
            bundle,
            printed: Vec::new(),
        })
    }

    /// Waits until the server listens; returns `false` if the container has exited before.
    fn wait_listening(&mut self) -> io::Result<bool> {
        let listens = |printed: &[u8]| printed.starts_with(LISTENING.as_bytes());
        let deadline = Instant::now() + STARTS_WITHIN;
        self.printed = read_until(&mut self.process.stdout, deadline, listens)?;
        Ok(listens(&self.printed))
    }

    /// Waits until the server has exited, and returns the peer that it has reported.
    fn wait_peer(&mut self) -> Option<String> {
        let deadline = Instant::now() + ENDS_WITHIN;
        let rest = read_until(&mut self.process.stdout, deadline, |_| false).ok()?;
        self.printed.extend(rest);
        self.report()
    }

    /// The server's report, without the verdict.
    fn report(&self) -> Option<String> {
        let printed = String::from_utf8_lossy(&self.printed);
        let subject = format!("{ACCEPTED}: ");
        let (_, report) = printed.split_once(&subject)?;
        Some(report.trim_end().to_owned())
    }

    /// Waits for the reason why the container has exited: the server's report, or the last line of the runtime's errors.
    fn wait_failure(&mut self) -> Outcome {
        if let Some(report) = self.report() {
            return Outcome::ServerFailed(report);
        }
        let deadline = Instant::now() + ENDS_WITHIN;
        let stderr = read_until(&mut self.process.stderr, deadline, |_| false);
        Outcome::RuntimeFailed(last_line(&stderr.unwrap_or_default()))
    }

    /// Deletes the container.
    ///
    /// # Errors
    ///
    /// The runtime could not delete the container. Its folder is kept then.
    fn remove(mut self) -> Result<(), Leftover> {
        let mut delete = runtime_command(self.runtime, &self.bundle);
        delete.args(["delete", "--force"]).arg(&self.bundle.id);
        let deleted = output_within(&mut delete, DELETES_WITHIN);
        let _ = self.process.kill();
        let _ = self.process.wait();
        let reason = match deleted {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => last_line(&output.stderr),
            Err(error) => error.to_string(),
        };
        // The runtime's `run` deletes a container that exits.
        if !self.bundle.has_state() {
            return Ok(());
        }
        let leftover = Leftover {
            reason,
            delete: command_line([delete.get_program()].into_iter().chain(delete.get_args())),
            folder: self.bundle.folder.display().to_string(),
        };
        self.bundle.keep();
        Err(leftover)
    }
}

fn last_line(stderr: &[u8]) -> String {
    match String::from_utf8_lossy(stderr).lines().last() {
        Some(line) => line.escape_debug().to_string(),
        None => "it has ended without a message".to_owned(),
    }
}

fn runtime_command(runtime: &Runtime, bundle: &Bundle) -> Command {
    let mut command = Command::new(&runtime.path);
    command.args(runtime.kind.options);
    command.arg("--root").arg(bundle.state());
    command
}

/// Enough for a runtime on a busy host.
const STARTS_WITHIN: Duration = Duration::from_secs(20);
/// Beyond the agent's default time limit for a header, at which it closes the connection.
const ACCEPT_MARGIN: Duration = Duration::from_secs(2);
/// For what the server or the runtime prints at its end.
const ENDS_WITHIN: Duration = Duration::from_secs(3);
/// The runtime kills the container's processes, and waits for their end.
const DELETES_WITHIN: Duration = Duration::from_secs(10);

//! `peername demo`: runs a backend, a balancer, `peername proxy` and `peername jail` in one private network namespace, and
//! prints the client that the backend sees and the requests that leave the jail. The host's network is not changed.

mod jail;
mod peers;

use std::env;
use std::io::{self, Write, stdout};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode};

use anyhow::{Context, ensure};
use peername_proto::{Transport, V2Writer, write_v1};
use peername_proxy::backend::Backend;
use peername_proxy::routes;
use peername_sys::Errno;
use peername_sys::netlink::Netlink;
use peername_sys::process::caps::{CapabilitySet, is_effective};
use peername_sys::process::kill_on_close::KillOnClose;
use peername_sys::process::namespace::{NetworkNamespace, become_root_of_new_user_namespace};
use peername_sys::process::pidfd::PidFd;

use peers::{ask, ask_in_datagram, serve, serve_datagrams};

/// Options of `peername demo`: none.
#[derive(Debug, clap::Args)]
#[command(before_help = "Example:\n  peername demo")]
pub(crate) struct Args {}

/// Runs the demonstration. It fails, too, if the backend sees another address than the client's, or if a request that is not
/// allowed leaves the jail.
pub(crate) fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    if !is_effective(CapabilitySet::SYS_ADMIN) {
        become_root_of_new_user_namespace().context(
            "this host does not let ordinary users create namespaces; run `peername demo` as root",
        )?;
    }
    let _network = NetworkNamespace::unshare()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let cases = runtime.block_on(prepare())?;
    let proxy = Proxy::start(&cases)?;
    let _kill_on_close = proxy.kill_on_close()?;
    let out = &mut stdout();
    writeln!(
        out,
        "Who came in. In a network of its own: a backend, and a balancer that knows the client.\n"
    )?;
    for case in &cases {
        case.show(out)?;
    }
    writeln!(
        out,
        "What may go out. In the same network: a server, and a program that would reach it.\n"
    )?;
    jail::show(out)?;
    writeln!(
        out,
        "Next: `peername proxy --help` and `peername jail --help`; `peername doctor` tells whether a host can run them."
    )?;
    Ok(ExitCode::SUCCESS)
}

/// The demonstration for one address family.
struct Case {
    client: SocketAddr,
    /// The balancer's address, to which the client has connected.
    service: SocketAddr,
    proxy: SocketAddr,
    backend: SocketAddr,
}

/// Sets the network up and starts the backends; IPv6 only where this host has it.
async fn prepare() -> anyhow::Result<Vec<Case>> {
    let netlink = Netlink::open()?;
    netlink.set_loopback_up().await?;
    netlink.add_loopback_address(jail::SERVER.parse()?).await?;
    let mut backends = Vec::new();
    for address in [V4.backend, V6.backend] {
        for transport in [peername_sys::Transport::Tcp, peername_sys::Transport::Udp] {
            backends.push(Backend::new(address.parse()?, transport));
        }
    }
    routes::add(&backends).await?;
    let mut cases = vec![Case::new(&V4)?];
    match Case::new(&V6) {
        Ok(case) => cases.push(case),
        Err(error) if lacks_ipv6(&error) => {}
        Err(error) => return Err(error),
    }
    Ok(cases)
}

/// Whether this host has no IPv6 (EAFNOSUPPORT), or none on loopback (EADDRNOTAVAIL).
fn lacks_ipv6(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| {
        error.kind() == io::ErrorKind::AddrNotAvailable
            || error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error())
    })
}

/// A process of `peername proxy` in the namespaces of this thread. Dropping this kills it.
struct Proxy(Child);

impl Proxy {
    fn start(cases: &[Case]) -> anyhow::Result<Self> {
        let mut command = Command::new(env::current_exe().context("finding this program")?);
        command.args(["proxy", "--protocol", "both", "--trust", "loopback"]);
        command.args(["--workers", "1", "--quiet"]);
        for case in cases {
            command.arg(format!("--listen={}", case.proxy));
            command.arg(format!("--target={}", case.backend));
        }
        command
            .spawn()
            .map(Self)
            .context("starting `peername proxy`")
    }

    /// Has the proxy killed even if a signal ends this process, which then drops nothing.
    fn kill_on_close(&self) -> anyhow::Result<KillOnClose> {
        // The id is still the proxy's, which is not reaped yet.
        let pid = self.0.id();
        Ok(KillOnClose::new(pid, &PidFd::open(pid)?)?)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Fails if the proxy has exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Case {
    /// Parses the addresses, and starts the backends.
    fn new(addresses: &Addresses) -> anyhow::Result<Self> {
        let backend = serve(addresses.backend.parse()?)?;
        serve_datagrams(backend)?;
        Ok(Self {
            client: addresses.client.parse()?,
            service: addresses.service.parse()?,
            proxy: addresses.proxy.parse()?,
            backend,
        })
    }

    fn show(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let Self {
            client,
            service,
            proxy,
            backend,
        } = self;
        let mut v1_header = Vec::new();
        write_v1(&mut v1_header, *client, *service);
        let mut v2_header = Vec::new();
        V2Writer::proxy(&mut v2_header, Transport::Datagram, *client, *service).finish()?;
        let without_proxy = ask(*backend, b"")?;
        let over_tcp = ask(*proxy, &v1_header)?;
        let over_udp = ask_in_datagram(*proxy, &v2_header)?;
        let line = String::from_utf8_lossy(&v1_header);
        writeln!(
            out,
            "The client is {client}. The balancer sends peername at {proxy} the header"
        )?;
        writeln!(out, "    {}", line.trim_end())?;
        writeln!(out, "and the backend at {backend} saw")?;
        writeln!(out, "    without peername   {without_proxy}")?;
        writeln!(out, "    with peername      {over_tcp}")?;
        writeln!(out, "    and over UDP       {over_udp}\n")?;
        for seen in [over_tcp, over_udp] {
            ensure!(seen == *client, "the backend should have seen {client}");
        }
        Ok(())
    }
}

struct Addresses {
    client: &'static str,
    service: &'static str,
    proxy: &'static str,
    backend: &'static str,
}

/// Clients and services have documentation addresses (RFC 5737, RFC 3849).
const V4: Addresses = Addresses {
    client: "203.0.113.7:56324",
    service: "198.51.100.10:443",
    proxy: "127.0.0.1:8443",
    backend: "127.0.0.1:9000",
};
const V6: Addresses = Addresses {
    client: "[2001:db8::7]:56324",
    service: "[2001:db8:1::10]:443",
    proxy: "[::1]:8443",
    backend: "[::1]:9000",
};

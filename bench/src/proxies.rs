//! The contestants: how each is found, configured and started.
//!
//! All get the same task: listen on one loopback port, take PROXY protocol headers from loopback
//! peers, reach one backend as the client they name. Otherwise they keep their defaults,
//! except that logging is off and that they may use every core.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::cell::Watch;
use crate::load::{Preface, Transport};
use crate::rounds::Contender;

pub(crate) use command_line::CommandLine;
pub(crate) use haproxy::Haproxy;
pub(crate) use nginx::Nginx;

mod command_line;
mod haproxy;
mod nginx;

/// One column of the comparison.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Contestant {
    /// No proxy: what machine, generator and backend do by themselves.
    Direct,
    Haproxy(Haproxy),
    Nginx(Nginx),
    /// peername, go-mmproxy, and whatever else is configured by its arguments.
    CommandLine(CommandLine),
    /// The backend itself in a proxy's place, as it is or started by `peername exec`.
    Backend(CommandLine, Preface),
}

/// What all contestants have in common.
pub(crate) trait Proxy {
    /// As it stands in the tables.
    fn name(&self) -> &str;

    /// The program itself.
    fn program(&self) -> &Path;

    /// The arguments that make it print its version.
    fn version_flag(&self) -> &str;

    /// Whether it knows the protocol over `transport`.
    fn carries(&self, transport: Transport) -> bool {
        transport == Transport::Tcp
    }

    /// Why it can't take part although the program is there. None if it can.
    fn obstacle(&self) -> Option<String> {
        None
    }

    /// The command that runs it in the foreground; writes its configuration if it has one.
    ///
    /// # Errors
    /// The configuration could not be written.
    fn command(&self, site: &Site) -> Result<Command>;
}

/// Where one measurement takes place.
pub(crate) struct Site {
    /// What it has to carry.
    pub(crate) transport: Transport,
    /// Where the proxy listens.
    pub(crate) listen: SocketAddr,
    /// Where the backend listens.
    pub(crate) backend: SocketAddr,
    /// An empty directory for configuration and logs.
    pub(crate) directory: PathBuf,
}

/// Which contestants there are and where their programs lie.
#[derive(clap::Args)]
pub(crate) struct Selection {
    /// peername's binary
    #[arg(long, value_name = "PATH", default_value = "target/release/peername")]
    peername: PathBuf,
    /// Further arguments for `peername proxy`
    #[arg(
        long,
        value_name = "ARGS",
        default_value = "",
        allow_hyphen_values = true
    )]
    peername_args: String,
    /// HAProxy's binary
    #[arg(long, value_name = "PATH", default_value = "haproxy")]
    haproxy: PathBuf,
    /// nginx's binary; needs the stream module
    #[arg(long, value_name = "PATH", default_value = "nginx")]
    nginx: PathBuf,
    /// go-mmproxy's binary; takes part only if given
    #[arg(long, value_name = "PATH")]
    go_mmproxy: Option<PathBuf>,
    /// Compare the ways of `peername exec` with a plain server and with the proxy, and nobody else;
    /// the server's CPU time is counted for all
    #[arg(long)]
    exec: bool,
    /// Another contestant; {listen} and {backend} stand for the addresses. May be repeated
    #[arg(long = "proxy", value_name = "NAME=COMMAND", value_parser = CommandLine::parse_tcp)]
    others: Vec<CommandLine>,
    /// Another contestant for UDP. May be repeated
    #[arg(long = "udp-proxy", value_name = "NAME=COMMAND", value_parser = CommandLine::parse_udp)]
    udp_others: Vec<CommandLine>,
}

impl Selection {
    /// All contestants in the order in which they take turns.
    ///
    /// # Errors
    /// This program does not know where it lies.
    pub(crate) fn contestants(&self) -> Result<Vec<Contestant>> {
        if self.exec {
            return self.ways_of_exec();
        }
        let mut all = vec![
            Contestant::Direct,
            Contestant::CommandLine(self.peername()),
            Contestant::Haproxy(Haproxy {
                program: resolve(&self.haproxy),
            }),
            Contestant::Nginx(Nginx {
                program: resolve(&self.nginx),
            }),
        ];
        let others = self.go_mmproxy().into_iter().chain(self.others.clone());
        let udp_others = [self.in_kernel(), naive()?].into_iter();
        let udp_others = udp_others.chain(self.udp_others.clone());
        all.extend(others.chain(udp_others).map(Contestant::CommandLine));
        Ok(all)
    }

    /// Whose CPU time is counted.
    pub(crate) fn watch(&self) -> Watch {
        if self.exec { Watch::All } else { Watch::Proxy }
    }

    fn ways_of_exec(&self) -> Result<Vec<Contestant>> {
        let bench = std::env::current_exe().context("own path")?;
        let plain = CommandLine::new("plain", &bench).over(Transport::Tcp, BACKEND);
        let by = |mode, options: &str| {
            let line = format!(
                "exec --mode {mode} {EXEC} {options} -- {} {BACKEND}",
                bench.display()
            );
            let by = CommandLine::new(mode, &self.peername).over(Transport::Tcp, &line);
            Contestant::Backend(by, Preface::Proxy)
        };
        Ok(vec![
            Contestant::Backend(plain, Preface::None),
            by("preload", ""),
            by("notify", ""),
            Contestant::CommandLine(self.peername()),
            by("netns", "--listen {listen}"),
        ])
    }

    fn peername(&self) -> CommandLine {
        CommandLine::new("peername", &self.peername)
            .over(Transport::Tcp, PEERNAME)
            .over(Transport::Udp, PEERNAME_UDP)
            .with(&self.peername_args)
    }

    /// The same with steady sessions in the kernel.
    fn in_kernel(&self) -> CommandLine {
        CommandLine::new("kernel", &self.peername)
            .over(Transport::Udp, PEERNAME_UDP)
            .with("--data-path kernel")
            .with(&self.peername_args)
    }

    fn go_mmproxy(&self) -> Option<CommandLine> {
        let program = self.go_mmproxy.as_ref()?;
        let contestant = CommandLine::new("go-mmproxy", program)
            .over(Transport::Tcp, GO_MMPROXY)
            .over(Transport::Udp, GO_MMPROXY_UDP);
        Some(contestant)
    }
}

/// Our own yardstick, in this binary.
fn naive() -> Result<CommandLine> {
    let program = std::env::current_exe().context("own path")?;
    Ok(CommandLine::new("naive", &program).over(Transport::Udp, NAIVE))
}

impl Contestant {
    /// None for the direct way.
    pub(crate) fn proxy(&self) -> Option<&dyn Proxy> {
        match self {
            Self::Direct => None,
            Self::Haproxy(proxy) => Some(proxy),
            Self::Nginx(proxy) => Some(proxy),
            Self::CommandLine(proxy) | Self::Backend(proxy, _) => Some(proxy),
        }
    }

    /// What the generator has to send first.
    pub(crate) fn preface(&self) -> Preface {
        match self {
            Self::Direct => Preface::None,
            Self::Backend(_, preface) => *preface,
            _ => Preface::Proxy,
        }
    }

    /// Whether there is no other backend than itself.
    pub(crate) fn is_backend(&self) -> bool {
        matches!(self, Self::Backend(..))
    }

    /// Whether it can do workloads over `transport` at all.
    pub(crate) fn carries(&self, transport: Transport) -> bool {
        self.proxy().is_none_or(|proxy| proxy.carries(transport))
    }
}

impl Contender for Contestant {
    fn name(&self) -> &str {
        self.proxy().map_or("direct", Proxy::name)
    }

    fn obstacle(&self) -> Option<String> {
        let proxy = self.proxy()?;
        if !proxy.program().is_file() {
            return Some(format!("{} is not there", proxy.program().display()));
        }
        proxy.obstacle()
    }

    fn version(&self) -> String {
        let Some(proxy) = self.proxy() else {
            return String::from("no proxy");
        };
        let text = output(proxy.program(), &[proxy.version_flag()]).unwrap_or_default();
        let line = text
            .lines()
            .find(|line| line.bytes().any(|byte| byte.is_ascii_digit()));
        line.unwrap_or("version unknown").to_owned()
    }
}

/// What a program prints on either stream, given arguments that it knows.
///
/// # Errors
/// It can't be run, or failed.
pub(crate) fn output(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("run {}", program.display()))?;
    ensure!(
        output.status.success(),
        "{} {}: {}",
        program.display(),
        arguments.join(" "),
        output.status
    );
    let bytes = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A bare name is looked up in PATH and where distributions keep their servers; what is not found
/// stays as it is.
fn resolve(program: &Path) -> PathBuf {
    if program.components().count() > 1 {
        return program.to_owned();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| program.to_owned())
}

const PEERNAME: &str = "proxy --listen {listen} -4 {backend} --trust loopback";
const EXEC: &str = "--trust loopback --ports 8443";
const BACKEND: &str = "backend --listen {listen}";
const PEERNAME_UDP: &str =
    "proxy --protocol udp --udp-header each --listen {listen} -4 {backend} --trust loopback";

/// Its default is to log each connection; 0 leaves errors.
const GO_MMPROXY: &str = "-l {listen} -4 {backend} -v 0";
const GO_MMPROXY_UDP: &str = "-p udp -l {listen} -4 {backend} -v 0";

const NAIVE: &str = "naive-udp --listen {listen} --to {backend}";

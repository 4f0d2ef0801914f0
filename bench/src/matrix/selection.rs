//! The contestants that a run selects, and the paths of their programs.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::host::program::resolve;
use crate::load::spec::Preface;
use crate::matrix::contestants::command_line::CommandLine;
use crate::matrix::contestants::{ADMIN, MatrixContestant};
use crate::wire::transport::Transport;

/// The processes to count the CPU time of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum CpuScope {
    /// The proxy's.
    Proxy,
    /// All but the generator's: this makes a contestant that is proxy and backend in one process comparable with
    /// those that are two.
    AllButGenerator,
}

/// The options that select contestants.
#[derive(clap::Args)]
pub(super) struct Selection {
    /// peername's binary
    #[arg(long, value_name = "PATH", default_value = "target/dist/peername")]
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
    /// Compare the modes of `peername exec` with a plain server and with the proxy, and no other contestant;
    /// counts the server's CPU time for all
    #[arg(long)]
    exec: bool,
    /// Another contestant; {listen} and {backend} are replaced by the addresses. May be repeated
    #[arg(long = "proxy", value_name = "NAME=COMMAND", value_parser = CommandLine::parse_tcp)]
    others: Vec<CommandLine>,
    /// Another contestant for UDP. May be repeated
    #[arg(long = "udp-proxy", value_name = "NAME=COMMAND", value_parser = CommandLine::parse_udp)]
    udp_others: Vec<CommandLine>,
}

impl Selection {
    /// All contestants in the order in which they take turns.
    pub(super) fn contestants(&self) -> Result<Vec<MatrixContestant>> {
        if self.exec {
            return self.exec_modes();
        }
        let mut all = vec![
            MatrixContestant::Direct,
            MatrixContestant::CommandLine(self.peername()),
            MatrixContestant::Observed(self.peername_observed()),
            MatrixContestant::Haproxy(resolve(&self.haproxy)),
            MatrixContestant::Nginx(resolve(&self.nginx)),
        ];
        all.extend(
            self.go_mmproxy()
                .into_iter()
                .chain(self.others.clone())
                .chain([self.peername_in_kernel(), naive_udp()?])
                .chain(self.udp_others.clone())
                .map(MatrixContestant::CommandLine),
        );
        Ok(all)
    }

    /// The processes to count the CPU time of.
    pub(super) fn cpu_scope(&self) -> CpuScope {
        if self.exec {
            CpuScope::AllButGenerator
        } else {
            CpuScope::Proxy
        }
    }

    fn exec_modes(&self) -> Result<Vec<MatrixContestant>> {
        let bench = std::env::current_exe().context("own path")?;
        let plain = CommandLine::new("plain", &bench).over(Transport::Tcp, BACKEND);
        let exec_mode = |mode, options: &str| {
            let line = format!(
                "exec --mode {mode} {EXEC} {options} -- {} {BACKEND}",
                bench.display()
            );
            let line = CommandLine::new(mode, &self.peername).over(Transport::Tcp, &line);
            MatrixContestant::Backend(line, Preface::Proxy)
        };
        let in_container = format!("{} {} {BACKEND}", self.peername.display(), bench.display());
        let agent = CommandLine::new("agent", Path::new(IN_CONTAINER));
        let agent = agent.over(Transport::Tcp, &in_container);
        Ok(vec![
            MatrixContestant::Backend(plain, Preface::None),
            exec_mode("preload", ""),
            exec_mode("notify", ""),
            MatrixContestant::Backend(agent, Preface::Proxy),
            MatrixContestant::CommandLine(self.peername()),
            exec_mode("netns", "--listen {listen}"),
        ])
    }

    fn peername(&self) -> CommandLine {
        CommandLine::new("peername", &self.peername)
            .over(Transport::Tcp, PEERNAME)
            .over(Transport::Udp, PEERNAME_UDP)
            .with(&self.peername_args)
    }

    /// peername while Prometheus scrapes it and its page is open.
    fn peername_observed(&self) -> CommandLine {
        CommandLine::new("observed", &self.peername)
            .over(Transport::Tcp, PEERNAME)
            .over(Transport::Udp, PEERNAME_UDP)
            .with(&format!("--admin {ADMIN}"))
            .with(&self.peername_args)
    }

    /// peername with UDP sessions offloaded to the kernel.
    fn peername_in_kernel(&self) -> CommandLine {
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

/// The UDP baseline, in this binary.
fn naive_udp() -> Result<CommandLine> {
    let program = std::env::current_exe().context("own path")?;
    Ok(CommandLine::new("naive", &program).over(Transport::Udp, NAIVE))
}

const PEERNAME: &str = "proxy --listen {listen} -4 {backend} --trust loopback";
const EXEC: &str = "--trust loopback --ports 8443";
/// Runs a program in a container that `peername agent` supervises.
const IN_CONTAINER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/exec/in-container.sh");
const BACKEND: &str = "backend --listen {listen}";
const PEERNAME_UDP: &str =
    "proxy --protocol udp --udp-header each --listen {listen} -4 {backend} --trust loopback";

/// By default it logs each connection; verbosity 0 logs errors only.
const GO_MMPROXY: &str = "-l {listen} -4 {backend} -v 0";
const GO_MMPROXY_UDP: &str = "-p udp -l {listen} -4 {backend} -v 0";

const NAIVE: &str = "naive-udp --listen {listen} --to {backend}";

//! One cell: one contestant and one shape of load, in a network of their own.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::compare::contestant::Contestant;
use crate::compare::measurement::Measurement;
use crate::compare::sandbox::{CellArgs, serve_commands};
use crate::host::background_load::BackgroundMonitor;
use crate::host::namespace;
use crate::host::server_process::ServerProcess;
use crate::intercept::affinity::Processors;
use crate::intercept::certificates;
use crate::intercept::contestants::{InterceptContestant, InterceptSetup};
use crate::intercept::dns;
use crate::intercept::load;
use crate::intercept::load::spec::{DOMAIN, LoadShape, Route, TlsLoadSpec};
use crate::wire::transport::Transport;

/// What to measure.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct InterceptCell {
    pub(super) contestant: InterceptContestant,
    pub(super) shape: LoadShape,
    /// An empty directory; the logs in it explain a failure.
    pub(super) directory: PathBuf,
}

/// Sets the cell up in this process's namespace, and measures on command.
pub(crate) fn run(args: &CellArgs) -> Result<()> {
    let cell: InterceptCell = args.parse()?;
    namespace::configure()?;
    namespace::run_ip_batch(&format!("addr add {}/32 dev lo", ORIGIN.ip()))?;
    cell.run()
}

impl InterceptCell {
    fn run(&self) -> Result<()> {
        let directory = self.directory.as_path();
        let [root, issuer] = ["root.pem", "origin.pem"].map(|name| directory.join(name));
        let processors = Processors::select()?;
        processors.move_to_rest()?;
        let _dns = dns::serve(DOMAIN, *ORIGIN.ip(), directory)?;
        let key = directory.join("origin.key");
        certificates::write_origin_ca(&root, &issuer, &key)?;
        let origin = start_origin(&issuer, &key, directory)?;
        let setup = InterceptSetup {
            listen: PROXY,
            origin: ORIGIN,
            root: &root,
            issuer: &issuer,
            directory,
        };
        let Some(proxy) = self.contestant.proxy_command(&setup)? else {
            return serve(&TlsLoadSpec {
                shape: self.shape,
                route: Route::Direct,
                origin: ORIGIN,
                authority: root.clone(),
                root: root.clone(),
                watch: Some(origin.tree()),
                begin: None,
            });
        };
        let running = processors.start_on_proxy_processor(|| {
            ServerProcess::start(
                self.contestant.name(),
                proxy.command,
                directory,
                (Transport::Tcp, PROXY),
            )
        })?;
        let measured = serve(&TlsLoadSpec {
            shape: self.shape,
            route: Route::Proxy(PROXY),
            origin: ORIGIN,
            authority: proxy.authority,
            root: root.clone(),
            watch: Some(running.tree()),
            begin: None,
        });
        measured.with_context(|| running.log_tail())
    }
}

fn serve(spec: &TlsLoadSpec) -> Result<()> {
    serve_commands(|_| {
        let monitor = BackgroundMonitor::start()?;
        let metrics = load::run(spec)?;
        Ok(Measurement {
            observed: None,
            background: monitor.finish()?,
            metrics,
        })
    })
}

/// Starts the origin, on a documentation address, which no proxy takes for an address of this machine. The certificates of
/// its hosts are signed by the intermediate CA in these files.
pub(crate) fn start_origin(issuer: &Path, key: &Path, directory: &Path) -> Result<ServerProcess> {
    let mut command = Command::new(std::env::current_exe().context("own path")?);
    command
        .args(["intercept-origin", "--listen", &ORIGIN.to_string()])
        .arg("--certificate")
        .arg(issuer)
        .arg("--key")
        .arg(key);
    ServerProcess::start("origin", command, directory, (Transport::Tcp, ORIGIN))
}

const PROXY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8443);
/// The address of the origin.
pub(crate) const ORIGIN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 443);

//! One measurement: one contestant, one shape of load, in a network of their own.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::cell::{Args, Outcome};
use crate::intercept::affinity::Places;
use crate::intercept::load::{self, DOMAIN, Plan, Shape};
use crate::intercept::peers::{Contestant, Site};
use crate::intercept::profile::Profiler;
use crate::intercept::{authority, names};
use crate::load::{Metric, Transport};
use crate::namespace;
use crate::neighbours::Neighbours;
use crate::rounds::Contender;
use crate::running::Running;
use crate::stand;

/// What to measure.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) contestant: Contestant,
    pub(crate) shape: Shape,
    /// Where to write down what the proxy spent its time on, if it shall be sampled.
    pub(crate) profile: Option<PathBuf>,
    /// An empty directory; what is in it afterwards explains a failure.
    pub(crate) directory: PathBuf,
}

/// Sets everything up in this process's namespace, and measures whenever it is told to.
///
/// # Errors
/// The namespace is not one of ours, something did not start, or the load failed.
pub(crate) fn print(args: &Args) -> Result<()> {
    let cell: Cell = args.parse()?;
    namespace::furnish()?;
    namespace::ip(&format!("addr add {}/32 dev lo", ORIGIN.ip()))?;
    cell.run()
}

impl Cell {
    fn run(&self) -> Result<()> {
        let directory = self.directory.as_path();
        let [root, issuer] = ["root.pem", "origin.pem"].map(|name| directory.join(name));
        let places = Places::find()?;
        places.take_rest()?;
        let _names = names::serve(DOMAIN, *ORIGIN.ip(), directory)?;
        let origin = start_origin(&root, &issuer, directory)?;
        let site = Site {
            listen: PROXY,
            origin: ORIGIN,
            root: &root,
            issuer: &issuer,
            directory,
        };
        let Some(proxy) = self.contestant.proxy(&site)? else {
            return self.take_turns(&Plan {
                shape: self.shape,
                proxy: None,
                origin: ORIGIN,
                authority: root.clone(),
                root: root.clone(),
                watch: Some(origin.tree()),
            });
        };
        let name = self.contestant.name();
        let at = (Transport::Tcp, PROXY);
        let running = places.start_proxy(|| Running::start(name, proxy.command, directory, at))?;
        let measured = self.take_turns(&Plan {
            shape: self.shape,
            proxy: Some(PROXY),
            origin: ORIGIN,
            authority: proxy.authority,
            root: root.clone(),
            watch: Some(running.tree()),
        });
        measured.with_context(|| running.last_words())
    }

    fn take_turns(&self, plan: &Plan) -> Result<()> {
        stand::take_turns(|_| self.load(plan))
    }

    fn load(&self, plan: &Plan) -> Result<Outcome> {
        let neighbours = Neighbours::watch()?;
        let metrics = match &self.profile {
            None => load::run(plan, || Ok(()))?,
            Some(listing) => self.profiled(plan, listing)?,
        };
        Ok(Outcome {
            identity: None,
            disturbance: neighbours.disturbance()?,
            metrics,
        })
    }

    fn profiled(&self, plan: &Plan, listing: &Path) -> Result<Vec<Metric>> {
        let proxy = plan.watch.context("nobody to sample")?;
        let mut profiler = None;
        let metrics = load::run(plan, || {
            profiler = Some(Profiler::start(proxy, &self.directory)?);
            Ok(())
        })?;
        let profiler = profiler.context("the load never began")?;
        let issued = metrics
            .into_iter()
            .filter(|metric| metric.name == load::CERTIFICATES);
        let mut metrics = profiler.finish(listing)?;
        metrics.extend(issued);
        Ok(metrics)
    }
}

/// On the documentation's addresses, which no proxy takes for this machine.
fn start_origin(root: &Path, issuer: &Path, directory: &Path) -> Result<Running> {
    let key = directory.join("origin.key");
    authority::write_origin(root, issuer, &key)?;
    let mut command = Command::new(std::env::current_exe().context("own path")?);
    command
        .args(["intercept-origin", "--listen", &ORIGIN.to_string()])
        .arg("--certificate")
        .arg(issuer)
        .arg("--key")
        .arg(key);
    Running::start("origin", command, directory, (Transport::Tcp, ORIGIN))
}

const PROXY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8443);
const ORIGIN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 443);

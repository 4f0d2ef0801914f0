//! Requests of a client in a jail, and what the jail's processes spend on them.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::{Context, Result, ensure};

use crate::compare::measurement::{Measurement, Metric};
use crate::host::background_load::BackgroundMonitor;
use crate::host::procfs::{ProcessSet, ProcessTree};
use crate::host::server_process::ServerProcess;
use crate::intercept::cell::{ORIGIN, start_origin};
use crate::intercept::dns;
use crate::intercept::load::spec::{CPU, DOMAIN, LoadShape};
use crate::jail::cases::{ANONYMOUS, PSS};
use crate::jail::client::{BEGIN, READY, SUBCOMMAND};
use crate::jail::contestants::{JailContestant, JailSetup};
use crate::jail::stage;

/// A jail with the client in it, and the servers outside.
pub(super) struct Requests {
    /// The jail's processes; None if there is no jail.
    jail: Option<ProcessSet>,
    client: JailedClient,
    _servers: [ServerProcess; 2],
}

/// The client, by its standard streams. They are closed on drop, so that it exits.
struct JailedClient {
    child: Child,
    commands: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Requests {
    /// Starts the servers and the jail, and waits for the client. The intermediate CA of these files signs the hosts'
    /// certificates.
    pub(super) fn start(
        contestant: &JailContestant,
        setup: &JailSetup,
        (issuer, key): (&Path, &Path),
        directory: &Path,
    ) -> Result<Self> {
        let dns = dns::serve(DOMAIN, *ORIGIN.ip(), directory)?;
        let origin = start_origin(issuer, key, directory)?;
        let own = std::env::current_exe().context("own path")?;
        let program = stage::install(&own)?;
        let program = program.to_str().context("a path in UTF-8")?;
        let client = JailedClient::start(contestant, setup, program)?;

        let mut jail = ProcessTree::descendants_of_self().members()?;
        let pid = jail.find_by_first_argument(SUBCOMMAND);
        let pid = pid.context("the client is not a process of this namespace")?;
        for other in [dns.tree(), origin.tree(), ProcessTree::of(pid)] {
            jail.remove(&other.members()?);
        }
        Ok(Self {
            jail: contestant.is_jail().then_some(jail),
            client,
            _servers: [dns, origin],
        })
    }

    /// Applies one load. CPU time and memory are those of the jail's processes, without client and servers.
    pub(super) fn measure(&mut self, shape: LoadShape, with_memory: bool) -> Result<Measurement> {
        let mut memory = self.memory(with_memory, 0)?;
        self.client.send(&serde_json::to_string(&shape)?)?;
        self.client.expect(BEGIN)?;
        let monitor = BackgroundMonitor::start()?;
        let before = self.jail.as_ref().map(ProcessSet::cpu);
        self.client.send("")?;
        let line = self.client.next_line()?;
        let after = self.jail.as_ref().map(ProcessSet::cpu);
        let background = monitor.finish()?;
        let client_metrics: Vec<Metric> =
            serde_json::from_str(&line).with_context(|| format!("the client printed {line:?}"))?;

        let mut metrics = Vec::new();
        if let (Some(before), Some(after)) = (before, after) {
            let cpu = after.since(before).as_secs_f64();
            metrics.push(Metric::new(CPU, 1000.0 * cpu / shape.requests as f64));
        }
        memory.extend(self.memory(with_memory, 1)?);
        metrics.extend(memory);
        metrics.extend(client_metrics);
        Ok(Measurement {
            observed: None,
            background,
            metrics,
        })
    }

    /// The jail's memory, under the metrics' names at this time: 0 at the start, 1 after the requests.
    fn memory(&self, is_wanted: bool, time: usize) -> Result<Vec<Metric>> {
        let Some(jail) = self.jail.as_ref().filter(|_| is_wanted) else {
            return Ok(Vec::new());
        };
        let metric = |name, bytes: u64| Metric::new(name, bytes as f64 / 1024.0);
        Ok(vec![
            metric(PSS[time], jail.pss()?),
            metric(ANONYMOUS[time], jail.anonymous()?),
        ])
    }
}

impl JailedClient {
    fn start(contestant: &JailContestant, setup: &JailSetup, program: &str) -> Result<Self> {
        let mut command = contestant.command(setup, &[program, SUBCOMMAND]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        let mut client = Self {
            commands: child.stdin.take().context("no standard input")?,
            output: BufReader::new(child.stdout.take().context("no standard output")?).lines(),
            child,
        };
        client.expect(READY)?;
        Ok(client)
    }

    fn send(&mut self, line: &str) -> Result<()> {
        writeln!(self.commands, "{line}").context("write to the client")
    }

    fn expect(&mut self, expected: &str) -> Result<()> {
        let line = self.next_line()?;
        ensure!(line == expected, "the client printed {line:?}");
        Ok(())
    }

    fn next_line(&mut self) -> Result<String> {
        match self.output.next() {
            Some(line) => line.context("read from the client"),
            None => {
                let status = self.child.wait().context("wait for the jail")?;
                anyhow::bail!("the client in the jail ended: {status}")
            }
        }
    }
}

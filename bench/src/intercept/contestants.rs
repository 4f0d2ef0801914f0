//! The contestants: how each is found, configured and started.
//!
//! All have the same task: open every CONNECT with certificates signed by a CA, trust the origin's root, use one worker.
//! The competitors are configured as well as we can (`-tuned`), peername has its defaults.

use std::fs::File;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::compare::contestant::Contestant;
use crate::host::program::{run_for_output, version};
use crate::intercept::certificates;
use crate::intercept::load::spec::LoadShape;

/// A contestant: a row of the tables.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InterceptContestant {
    name: String,
    kind: Kind,
    program: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    /// No proxy: the CPU time of a plain TLS server for the same clients.
    Direct,
    /// The minimum: TLS on both sides, and TCP below it.
    Floor,
    Peername,
    /// An ECDSA CA; certificates and upstream connections are cached.
    Goproxy,
    /// A certificate cache for all hosts, Nagle's algorithm off.
    Hudsucker,
}

/// The options that select contestants.
#[derive(clap::Args)]
pub(crate) struct Selection {
    /// peername's binary
    #[arg(long, value_name = "PATH", default_value = "target/dist/peername")]
    peername: PathBuf,
    /// Another peername binary, compared under the name `before`
    #[arg(long, value_name = "PATH")]
    before: Option<PathBuf>,
    /// The binary of bench/intercept/goproxy
    #[arg(
        long,
        value_name = "PATH",
        default_value = "target/bench-intercept/goproxy"
    )]
    goproxy: PathBuf,
    /// The binary of bench/intercept/hudsucker
    #[arg(
        long,
        value_name = "PATH",
        default_value = "target/bench-intercept/hudsucker/release/bench-hudsucker"
    )]
    hudsucker: PathBuf,
}

/// What a proxy is configured with in one cell.
pub(crate) struct InterceptSetup<'a> {
    pub(crate) listen: SocketAddrV4,
    pub(crate) origin: SocketAddrV4,
    /// The origin's root CA.
    pub(crate) root: &'a Path,
    /// The intermediate CA that signs the hosts' certificates.
    pub(crate) issuer: &'a Path,
    /// An empty directory for configuration and logs.
    pub(crate) directory: &'a Path,
}

/// The command that starts a proxy, and the CA that its clients must trust.
pub(crate) struct ProxyCommand {
    pub(crate) command: Command,
    pub(crate) authority: PathBuf,
}

impl Selection {
    /// All contestants in the order in which they take turns.
    pub(crate) fn contestants(&self) -> Result<Vec<InterceptContestant>> {
        let contestant = |name: &str, kind, program: &Path| InterceptContestant {
            name: name.to_owned(),
            kind,
            program: std::path::absolute(program).unwrap_or_else(|_| program.to_owned()),
        };
        let before = self.before.as_ref();
        let own = std::env::current_exe().context("own path")?;
        let mut all = vec![
            contestant("direct", Kind::Direct, Path::new("")),
            contestant(FLOOR, Kind::Floor, &own),
            contestant("peername", Kind::Peername, &self.peername),
            contestant("goproxy-tuned", Kind::Goproxy, &self.goproxy),
            contestant("hudsucker-tuned", Kind::Hudsucker, &self.hudsucker),
        ];
        all.extend(before.map(|path| contestant("before", Kind::Peername, path)));
        Ok(all)
    }
}

impl InterceptContestant {
    /// Creates the CA and the command. None for direct connections to the origin.
    pub(crate) fn proxy_command(&self, setup: &InterceptSetup) -> Result<Option<ProxyCommand>> {
        let proxy = match self.kind {
            Kind::Direct => return Ok(None),
            Kind::Floor => self.floor(setup)?,
            Kind::Peername => self.peername(setup)?,
            Kind::Goproxy => self.goproxy(setup)?,
            Kind::Hudsucker => self.hudsucker(setup)?,
        };
        Ok(Some(proxy))
    }

    fn floor(&self, setup: &InterceptSetup) -> Result<ProxyCommand> {
        let (authority, key) = new_ca(setup)?;
        let mut command = Command::new(&self.program);
        command
            .args(["intercept-floor", "--listen", &setup.listen.to_string()])
            .args(["--origin", &setup.origin.to_string()])
            .arg("--certificate")
            .arg(&authority)
            .arg("--key")
            .arg(key)
            .arg("--issuer")
            .arg(setup.issuer);
        Ok(ProxyCommand { command, authority })
    }

    fn peername(&self, setup: &InterceptSetup) -> Result<ProxyCommand> {
        let authority = setup.directory.join("ca.pem");
        let ca = setup.directory.join("ca");
        for (subcommand, printed) in [("init", "ca-init.log"), ("export", "ca.pem")] {
            let mut command = Command::new(&self.program);
            command.args(["ca", subcommand, "--ca"]).arg(&ca);
            run_to_file(command, &setup.directory.join(printed))?;
        }
        let mut command = Command::new(&self.program);
        command
            .args(["intercept", "--listen", &setup.listen.to_string()])
            .args(["--allow-client", "any", "--ca"])
            .arg(ca)
            .arg("--extra-ca")
            .arg(setup.root)
            .arg("--allow-destination")
            .arg(format!("{}/32:{}", setup.origin.ip(), setup.origin.port()));
        Ok(ProxyCommand { command, authority })
    }

    fn goproxy(&self, setup: &InterceptSetup) -> Result<ProxyCommand> {
        let (authority, key) = new_ca(setup)?;
        let mut command = Command::new(&self.program);
        command
            .args(["-listen", &setup.listen.to_string(), "-ca"])
            .arg(&authority)
            .arg("-key")
            .arg(key)
            .env("GOMAXPROCS", "1")
            .env("SSL_CERT_FILE", setup.root);
        Ok(ProxyCommand { command, authority })
    }

    fn hudsucker(&self, setup: &InterceptSetup) -> Result<ProxyCommand> {
        let (authority, key) = new_ca(setup)?;
        let mut command = Command::new(&self.program);
        command
            .arg(setup.listen.to_string())
            .args([&authority, &key])
            .arg(setup.root);
        Ok(ProxyCommand { command, authority })
    }
}

impl Contestant for InterceptContestant {
    type Work = LoadShape;

    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> String {
        let flag = match self.kind {
            Kind::Direct => return String::from("no proxy; CPU is the origin's own"),
            Kind::Floor => {
                return String::from("no certificate made, no name looked up, no HTTP read");
            }
            Kind::Goproxy => "-version",
            Kind::Peername | Kind::Hudsucker => "--version",
        };
        version(&self.program, flag)
    }

    fn skip_reason(&self) -> Option<String> {
        let program = self.program.display();
        match self.kind {
            Kind::Direct | Kind::Floor => None,
            _ if !self.program.is_file() => Some(format!("{program} is not there")),
            Kind::Peername => run_for_output(&self.program, &["intercept", "--help"])
                .err()
                .map(|error| format!("{program} does not intercept: {error:#}")),
            _ => None,
        }
    }

    fn supports(&self, shape: &LoadShape) -> bool {
        // The floor caches nothing. Where hosts repeat, a proxy with a cache may well be below it.
        self.kind != Kind::Floor || shape.hosts >= shape.requests
    }
}

fn new_ca(setup: &InterceptSetup) -> Result<(PathBuf, PathBuf)> {
    let [certificate, key] = ["ca.pem", "ca.key"].map(|name| setup.directory.join(name));
    certificates::write_ca("benchmark proxy authority", &certificate, &key)?;
    Ok((certificate, key))
}

/// Runs a command to its end and writes its output to a file.
fn run_to_file(mut command: Command, path: &Path) -> Result<()> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    let output = command.stdin(Stdio::null()).stdout(file).output();
    let output = output.with_context(|| format!("run {}", command.get_program().display()))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// The floor's name in the tables.
pub(crate) const FLOOR: &str = "floor";

//! The contestants: how each is found, configured and started.
//!
//! All get the same task: open every CONNECT with certificates of an authority, believe the origin's
//! root, one worker. Besides, they are as their documentation shows them, or as good as we can make them
//! (`-tuned`).

use std::fs::File;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::intercept::authority;
use crate::proxies::output;
use crate::rounds::Contender;

/// One column of the comparison.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Contestant {
    name: String,
    kind: Kind,
    program: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    /// No proxy: what a plain TLS server spends on the same clients.
    Direct,
    /// Nothing but the TLS of both sides and what carries it.
    Floor,
    Peername,
    /// The built-in RSA authority, nothing kept.
    Goproxy,
    /// An ECDSA authority, which is the first thing that everybody changes.
    GoproxyEcdsa,
    /// And certificates and upstream connections kept.
    GoproxyTuned,
    /// As its examples show it.
    Hudsucker,
    /// Room for all certificates, no waiting for acknowledgements.
    HudsuckerTuned,
}

/// Which contestants there are and where their programs lie.
#[derive(clap::Args)]
pub(crate) struct Selection {
    /// peername's binary
    #[arg(long, value_name = "PATH", default_value = "target/release/peername")]
    peername: PathBuf,
    /// Another one of peername, to take turns with it under the name `before`
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

/// Where one measurement takes place.
pub(crate) struct Site<'a> {
    pub(crate) listen: SocketAddrV4,
    pub(crate) origin: SocketAddrV4,
    /// The origin's authority.
    pub(crate) root: &'a Path,
    /// The authority below it that certifies hosts.
    pub(crate) issuer: &'a Path,
    /// An empty directory for configuration and logs.
    pub(crate) directory: &'a Path,
}

/// A proxy that is ready to be started, and whom its clients must believe.
pub(crate) struct Proxy {
    pub(crate) command: Command,
    pub(crate) authority: PathBuf,
}

impl Selection {
    /// All contestants in the order in which they take turns: who is hardest to beat comes first.
    ///
    /// # Errors
    /// This program does not know where it lies.
    pub(crate) fn contestants(&self) -> Result<Vec<Contestant>> {
        let contestant = |name: &str, kind, program: &Path| Contestant {
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
            contestant("goproxy-tuned", Kind::GoproxyTuned, &self.goproxy),
            contestant("hudsucker-tuned", Kind::HudsuckerTuned, &self.hudsucker),
            contestant("goproxy-ecdsa", Kind::GoproxyEcdsa, &self.goproxy),
            contestant("hudsucker", Kind::Hudsucker, &self.hudsucker),
            contestant("goproxy-as-shipped", Kind::Goproxy, &self.goproxy),
        ];
        all.extend(before.map(|path| contestant("before", Kind::Peername, path)));
        Ok(all)
    }
}

impl Contestant {
    pub(crate) fn is_ours(&self) -> bool {
        self.kind == Kind::Peername
    }

    /// Whether it is no proxy to use, but what none can be under.
    pub(crate) fn is_floor(&self) -> bool {
        self.kind == Kind::Floor
    }

    /// Whether nothing that we know of could be better about it.
    pub(crate) fn is_tuned(&self) -> bool {
        use Kind::{Direct, GoproxyTuned, HudsuckerTuned, Peername};
        matches!(self.kind, Direct | Peername | GoproxyTuned | HudsuckerTuned)
    }

    /// As many as are worth waiting for: a new RSA key for each takes a tenth of a second.
    pub(crate) fn requests(&self) -> usize {
        match self.kind {
            Kind::Goproxy => 100,
            _ => usize::MAX,
        }
    }

    /// Makes its authority. None for the direct way.
    ///
    /// # Errors
    /// A file could not be written, or the program refused.
    pub(crate) fn proxy(&self, site: &Site) -> Result<Option<Proxy>> {
        let proxy = match self.kind {
            Kind::Direct => return Ok(None),
            Kind::Floor => self.floor(site)?,
            Kind::Peername => self.peername(site)?,
            Kind::Goproxy => self.goproxy_as_shipped(site)?,
            Kind::GoproxyEcdsa => self.goproxy(site, &[])?,
            Kind::GoproxyTuned => self.goproxy(site, &["-tuned"])?,
            Kind::Hudsucker => self.hudsucker(site, &[])?,
            Kind::HudsuckerTuned => self.hudsucker(site, &["tuned"])?,
        };
        Ok(Some(proxy))
    }

    fn floor(&self, site: &Site) -> Result<Proxy> {
        let (authority, key) = new_authority(site)?;
        let mut command = Command::new(&self.program);
        command
            .args(["intercept-floor", "--listen", &site.listen.to_string()])
            .args(["--origin", &site.origin.to_string()])
            .arg("--certificate")
            .arg(&authority)
            .arg("--key")
            .arg(key)
            .arg("--issuer")
            .arg(site.issuer);
        Ok(Proxy { command, authority })
    }

    fn peername(&self, site: &Site) -> Result<Proxy> {
        let authority = site.directory.join("ca.pem");
        let ca = site.directory.join("ca");
        for (subcommand, printed) in [("init", "ca-init.log"), ("export", "ca.pem")] {
            let mut command = Command::new(&self.program);
            command.args(["ca", subcommand, "--ca"]).arg(&ca);
            save(command, &site.directory.join(printed))?;
        }
        let mut command = Command::new(&self.program);
        command
            .args(["intercept", "--listen", &site.listen.to_string()])
            .args(["--allow-client", "any", "--ca"])
            .arg(ca)
            .arg("--extra-ca")
            .arg(site.root)
            .arg("--allow-destination")
            .arg(format!("{}/32:{}", site.origin.ip(), site.origin.port()));
        Ok(Proxy { command, authority })
    }

    fn goproxy_as_shipped(&self, site: &Site) -> Result<Proxy> {
        let authority = site.directory.join("ca.pem");
        let mut command = Command::new(&self.program);
        command.arg("-print-authority");
        save(command, &authority)?;
        let command = self.goproxy_command(site);
        Ok(Proxy { command, authority })
    }

    fn goproxy(&self, site: &Site, further: &[&str]) -> Result<Proxy> {
        let (authority, key) = new_authority(site)?;
        let mut command = self.goproxy_command(site);
        command.arg("-ca").arg(&authority).arg("-key").arg(key);
        command.args(further);
        Ok(Proxy { command, authority })
    }

    fn goproxy_command(&self, site: &Site) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["-listen", &site.listen.to_string()]);
        command
            .env("GOMAXPROCS", "1")
            .env("SSL_CERT_FILE", site.root);
        command
    }

    fn hudsucker(&self, site: &Site, further: &[&str]) -> Result<Proxy> {
        let (authority, key) = new_authority(site)?;
        let mut command = Command::new(&self.program);
        command.arg(site.listen.to_string());
        command
            .args([&authority, &key])
            .arg(site.root)
            .args(further);
        Ok(Proxy { command, authority })
    }
}

impl Contender for Contestant {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> String {
        let flag = match self.kind {
            Kind::Direct => return String::from("no proxy; CPU is the origin's own"),
            Kind::Floor => {
                return String::from("no certificate made, no name looked up, no HTTP read");
            }
            Kind::Goproxy | Kind::GoproxyEcdsa | Kind::GoproxyTuned => "-version",
            Kind::Peername | Kind::Hudsucker | Kind::HudsuckerTuned => "--version",
        };
        let said = output(&self.program, &[flag]).unwrap_or_default();
        said.lines().next().unwrap_or("version unknown").to_owned()
    }

    fn obstacle(&self) -> Option<String> {
        let program = self.program.display();
        match self.kind {
            Kind::Direct | Kind::Floor => None,
            _ if !self.program.is_file() => Some(format!("{program} is not there")),
            Kind::Peername => output(&self.program, &["intercept", "--help"])
                .err()
                .map(|error| format!("{program} does not intercept: {error:#}")),
            _ => None,
        }
    }
}

fn new_authority(site: &Site) -> Result<(PathBuf, PathBuf)> {
    let [certificate, key] = ["ca.pem", "ca.key"].map(|name| site.directory.join(name));
    authority::write("benchmark proxy authority", &certificate, &key)?;
    Ok((certificate, key))
}

/// Runs a command to its end and keeps what it prints.
fn save(mut command: Command, path: &Path) -> Result<()> {
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

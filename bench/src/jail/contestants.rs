//! The contestants: how each runs a program.
//!
//! All run it as the same ordinary user: `peername jail` is started by that user, httpjail by root as sudo would start it.
//! All requests are allowed, and none is logged, which is the default of both.

use std::net::SocketAddrV4;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::compare::contestant::Contestant;
use crate::host::program::{run_for_output, version};
use crate::jail::cases::{HTTPJAIL, Work};
use crate::jail::stage;

/// A contestant: a row of the tables.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct JailContestant {
    name: String,
    pub(super) kind: Kind,
    pub(super) program: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// The program without a jail.
    Direct,
    Peername,
    Httpjail,
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
    /// httpjail's binary: the one of `make bench-jail`, or any other
    #[arg(
        long,
        value_name = "PATH",
        default_value = "target/bench-jail/target/release/httpjail"
    )]
    httpjail: PathBuf,
}

/// What the jails of one cell are configured with.
pub(super) struct JailSetup<'a> {
    /// The jail's program, where every user may execute it.
    pub(super) program: &'a Path,
    pub(super) origin: SocketAddrV4,
    /// The origin's root CA.
    pub(super) root_ca: &'a Path,
    /// Whether this process is root outside of all namespaces, and may become another user.
    pub(super) is_root: bool,
}

impl Selection {
    /// All contestants in the order in which they take turns.
    pub(super) fn contestants(&self) -> Vec<JailContestant> {
        let contestant = |name: &str, kind, program: &Path| JailContestant {
            name: name.to_owned(),
            kind,
            program: std::path::absolute(program).unwrap_or_else(|_| program.to_owned()),
        };
        let mut all = vec![
            contestant("direct", Kind::Direct, Path::new("")),
            contestant("peername", Kind::Peername, &self.peername),
            contestant(HTTPJAIL, Kind::Httpjail, &self.httpjail),
        ];
        let before = self.before.as_ref();
        all.extend(before.map(|path| contestant("before", Kind::Peername, path)));
        all
    }
}

impl JailContestant {
    pub(super) fn is_jail(&self) -> bool {
        self.kind != Kind::Direct
    }

    /// The command that runs a program, with its arguments, in the jail.
    pub(super) fn command(&self, setup: &JailSetup, program: &[&str]) -> Command {
        let mut command = match self.kind {
            Kind::Direct => Command::new(program[0]),
            Kind::Peername | Kind::Httpjail => Command::new(setup.program),
        };
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("TMPDIR", stage::temporary());
        match self.kind {
            Kind::Direct => {
                command
                    .args(&program[1..])
                    .env("SSL_CERT_FILE", setup.root_ca);
            }
            Kind::Peername => {
                let origin = format!("{}/32:{}", setup.origin.ip(), setup.origin.port());
                command
                    .args(["jail", "--allow", "*", "--allow-destination", &origin])
                    .arg("--extra-ca")
                    .arg(setup.root_ca)
                    .arg("--")
                    .args(program);
            }
            Kind::Httpjail => {
                command.args(["--js", "true", "--"]).args(program);
                let user = USER.to_string();
                command.env("SUDO_UID", &user).env("SUDO_GID", user);
            }
        }
        if setup.is_root && self.kind != Kind::Httpjail {
            command.uid(USER).gid(USER);
        }
        command
    }
}

impl Contestant for JailContestant {
    type Work = Work;

    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> String {
        if self.kind == Kind::Direct {
            return String::from("no jail");
        }
        version(&self.program, "--version")
    }

    fn skip_reason(&self) -> Option<String> {
        let program = self.program.display();
        match self.kind {
            Kind::Direct => None,
            _ if !self.program.is_file() => Some(format!("{program} is not there")),
            Kind::Peername => run_for_output(&self.program, &["jail", "--help"])
                .err()
                .map(|error| format!("{program} has no jail: {error:#}")),
            Kind::Httpjail => {
                let is_root = rustix::process::geteuid().is_root();
                (!is_root).then(|| String::from("it needs root"))
            }
        }
    }

    fn supports(&self, work: &Work) -> bool {
        // Without a jail there is no process whose memory could be measured.
        self.is_jail() || !matches!(work, Work::Memory(_))
    }
}

/// The user that everything runs as, `nobody`.
const USER: u32 = 65534;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn jails_have_their_temporary_files_in_the_stage() {
        let contestant = JailContestant {
            name: String::from("peername"),
            kind: Kind::Peername,
            program: PathBuf::from("peername"),
        };
        let setup = JailSetup {
            program: Path::new("peername"),
            origin: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 443),
            root_ca: Path::new("root.pem"),
            is_root: false,
        };
        let command = contestant.command(&setup, &["true"]);
        let mut variables = command.get_envs();
        let variable = variables.find(|(name, _)| *name == "TMPDIR");
        let (_, value) = variable.expect("TMPDIR");
        assert_eq!(value, Some(stage::temporary().as_os_str()));
    }
}

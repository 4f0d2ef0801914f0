//! The installed container runtimes, and whether they hand containers to the agent (`listenerPath`).

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use peername_observe::shell::quote;

use super::bounded_command::output_within;
use crate::cmd::doctor::finding::Finding;
use crate::cmd::doctor::version::version;

/// A runtime on this host.
#[derive(Debug)]
pub(super) struct Runtime {
    pub(super) kind: &'static Kind,
    pub(super) path: PathBuf,
    /// `None` if it does not say.
    version: Option<String>,
}

/// A runtime that is known.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// The subject of the finding about its container.
    pub(super) container: &'static str,
    /// Its options before a command.
    pub(super) options: &'static [&'static str],
    support: Support,
}

/// Whether containers of a runtime can be handed to the agent.
#[derive(Debug)]
enum Support {
    /// It runs bundles, and connects to the agent, since this version.
    Runs(u32, u32),
    /// It has another one run them, and passes `listenerPath` on since this version.
    PassesOn(u32, u32),
    /// The kernel of this host does not see their system calls.
    Never,
}

impl Runtime {
    /// Asks the program with the name of this kind for its version. It may be one of another kind: `docker` may run podman.
    fn probe(kind: &'static Kind, path: PathBuf) -> Self {
        let said = output_within(Command::new(&path).arg("--version"), ANSWERS_WITHIN);
        let said = said.map(|output| output.stdout).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        Self {
            kind: kind_in(&said).unwrap_or(kind),
            path,
            version: version_in(&said),
        }
    }

    /// Whether it runs bundles and connects to the agent.
    pub(super) fn runs_bundles(&self) -> bool {
        matches!(self.kind.support, Support::Runs(..)) && self.is_able() == Some(true)
    }

    /// Whether its containers can be handed to the agent; `None` if its version is not known.
    fn is_able(&self) -> Option<bool> {
        match self.kind.support {
            Support::Runs(major, minor) | Support::PassesOn(major, minor) => {
                Some(version(self.version.as_deref()?)? >= (major, minor))
            }
            Support::Never => Some(false),
        }
    }

    fn finding(&self) -> Finding {
        let (name, path) = (self.kind.name, self.path.display());
        let found = self.version.as_deref().unwrap_or_default();
        match (self.is_able(), &self.kind.support) {
            (None, _) => Finding::warn(
                name,
                format!("{path} does not tell its version"),
                format!("see `{} --version`", quote(&self.path)),
            ),
            (Some(true), _) => Finding::ok(name, format!("{found}, {path}")),
            (Some(false), Support::Runs(major, minor) | Support::PassesOn(major, minor)) => {
                Finding::fail(
                    name,
                    format!(
                        "{found}, {path}, does not know listenerPath: its containers start as if there were no agent"
                    ),
                    format!("install {name} {major}.{minor} or later"),
                )
            }
            (Some(false), Support::Never) => Finding::warn(
                name,
                format!(
                    "{path}: its containers make no system call of this kernel, so the agent does not cover them"
                ),
                "run servers behind a balancer by runc or crun, or with `peername proxy` beside them",
            ),
        }
    }
}

/// The runtimes that are found by PATH.
pub(super) fn installed() -> Vec<Runtime> {
    let mut found: Vec<Runtime> = Vec::new();
    for kind in &KINDS {
        let Some(runtime) = find(kind.name).map(|path| Runtime::probe(kind, path)) else {
            continue;
        };
        if found
            .iter()
            .all(|other| other.kind.name != runtime.kind.name)
        {
            found.push(runtime);
        }
    }
    found
}

/// A finding for each.
pub(super) fn findings(runtimes: &[Runtime]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = runtimes.iter().map(Runtime::finding).collect();
    if !runtimes
        .iter()
        .any(|runtime| matches!(runtime.kind.support, Support::Runs(..)))
    {
        findings.push(Finding::fail(
            "container runtime",
            "neither runc nor crun is in a folder of PATH",
            "install one of them, or add the folder of yours to PATH, such as /var/lib/rancher/k3s/data/current/bin",
        ));
    }
    findings
}

fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SYSTEM_FOLDERS.map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// The kind that a runtime names before its version.
fn kind_in(said: &str) -> Option<&'static Kind> {
    let name = said.split_whitespace().next()?;
    KINDS
        .iter()
        .find(|kind| name.eq_ignore_ascii_case(kind.name))
}

/// The first word that is a version: `runc version 1.1.5+ds1`, `containerd containerd.io v1.6.20 2806fc`.
fn version_in(said: &str) -> Option<String> {
    said.split_whitespace()
        .map(|word| word.strip_prefix('v').unwrap_or(word).trim_end_matches(','))
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && version(word).is_some())
        .map(str::to_owned)
}

/// By their release notes; Docker: moby/moby#42604, podman: containers/common#945, containerd: the runtime-spec of its go.mod.
static KINDS: [Kind; 7] = [
    Kind {
        name: "runc",
        container: "container of runc",
        options: &[],
        support: Support::Runs(1, 1),
    },
    Kind {
        name: "crun",
        container: "container of crun",
        options: &["--cgroup-manager=disabled"],
        support: Support::Runs(0, 19),
    },
    Kind {
        name: "podman",
        container: "container of podman",
        options: &[],
        support: Support::PassesOn(4, 1),
    },
    Kind {
        name: "docker",
        container: "container of docker",
        options: &[],
        support: Support::PassesOn(23, 0),
    },
    Kind {
        name: "containerd",
        container: "container of containerd",
        options: &[],
        support: Support::PassesOn(1, 6),
    },
    Kind {
        name: "runsc",
        container: "container of runsc",
        options: &[],
        support: Support::Never,
    },
    Kind {
        name: "kata-runtime",
        container: "container of kata-runtime",
        options: &[],
        support: Support::Never,
    },
];
/// Where distributions have runc, which an ordinary user's PATH may lack.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];
/// Docker's client answers without its daemon.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_found_in_what_each_runtime_says() {
        for (said, expected) in [
            (
                "runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev\n",
                "1.1.5+ds1",
            ),
            (
                "crun version 1.8.1\ncommit: f8a096be060b22ccd3d5f3ebe44108517fbf6c30\n",
                "1.8.1",
            ),
            ("podman version 4.3.1\n", "4.3.1"),
            ("Docker version 28.2.2, build e6534b4\n", "28.2.2"),
            (
                "containerd containerd.io 1.6.20 2806fc1057397dbaeefbea0e4e17bddfbd388f38\n",
                "1.6.20",
            ),
            (
                "containerd github.com/containerd/containerd/v2 v2.0.4 1a43cb6a\n",
                "2.0.4",
            ),
        ] {
            assert_eq!(version_in(said).as_deref(), Some(expected));
        }
        assert_eq!(version_in("usage: runc COMMAND"), None);
    }

    #[test]
    fn runtime_without_listener_path_is_a_fault() {
        for (name, found, is_able) in [
            ("runc", "1.0.3", false),
            ("runc", "1.1.0-rc.1", true),
            ("crun", "0.18", false),
            ("crun", "1.8.1", true),
            ("docker", "20.10.24+dfsg1", false),
        ] {
            let runtime = Runtime {
                kind: KINDS.iter().find(|kind| kind.name == name).unwrap(),
                path: PathBuf::from("/usr/bin/it"),
                version: Some(found.to_owned()),
            };
            let finding = runtime.finding().to_string();
            assert_eq!(finding.starts_with("ok"), is_able, "{finding}");
            assert_eq!(finding.starts_with("FAIL"), !is_able, "{finding}");
        }
    }
}

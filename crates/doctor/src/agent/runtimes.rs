//! The installed container runtimes, and whether they hand containers to the agent (`listenerPath`).

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use peername_observe::shell::quote;

use super::bounded_command::output_within;
use crate::finding::Finding;
use crate::version::parse_version;

/// A runtime on this host.
#[derive(Debug)]
pub struct Runtime {
    pub(super) kind: &'static RuntimeKind,
    pub(super) path: PathBuf,
    /// `None` if the runtime prints none.
    version: Option<String>,
}

/// What is known of a runtime by its name.
#[derive(Debug)]
pub(super) struct RuntimeKind {
    pub(super) name: &'static str,
    /// The subject of the finding about a container that this runtime runs.
    pub(super) container: &'static str,
    /// Its options before a command.
    pub(super) options: &'static [&'static str],
    support: Support,
}

/// Whether containers of a runtime can be handed to the agent.
#[derive(Debug)]
enum Support {
    /// The runtime runs bundles, and connects to the agent since this version.
    Runs(u32, u32),
    /// The runtime has another runtime run its containers, and passes `listenerPath` on since this version.
    PassesOn(u32, u32),
    /// The kernel of this host does not see the containers' system calls.
    Never,
}

impl Runtime {
    /// Runs the program for its version. The output may name another kind than the program's name does: `docker` may run
    /// podman.
    fn probe(kind: &'static RuntimeKind, path: PathBuf) -> Self {
        let output = output_within(Command::new(&path).arg("--version"), ANSWERS_WITHIN)
            .map(|output| output.stdout)
            .unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        Self {
            kind: parse_kind(&output).unwrap_or(kind),
            path,
            version: find_version(&output),
        }
    }

    /// Whether the runtime itself runs bundles and connects to the agent.
    pub fn runs_bundles(&self) -> bool {
        matches!(self.kind.support, Support::Runs(..)) && self.supports_agent() == Some(true)
    }

    /// Whether the runtime's containers can be handed to the agent; `None` if its version is not known.
    fn supports_agent(&self) -> Option<bool> {
        match self.kind.support {
            Support::Runs(major, minor) | Support::PassesOn(major, minor) => {
                Some(parse_version(self.version.as_deref()?)? >= (major, minor))
            }
            Support::Never => Some(false),
        }
    }

    fn finding(&self) -> Finding {
        let (name, path) = (self.kind.name, self.path.display());
        let found = self.version.as_deref().unwrap_or_default();
        match (self.supports_agent(), &self.kind.support) {
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

/// Finds the runtimes in the folders of PATH, one of each kind.
pub fn installed() -> Vec<Runtime> {
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

/// A finding for each runtime, and one if none of them runs bundles.
pub fn findings(runtimes: &[Runtime]) -> Vec<Finding> {
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
fn parse_kind(output: &str) -> Option<&'static RuntimeKind> {
    let name = output.split_whitespace().next()?;
    KINDS
        .iter()
        .find(|kind| name.eq_ignore_ascii_case(kind.name))
}

/// The first word that is a version: `runc version 1.1.5+ds1`, `containerd containerd.io v1.6.20 2806fc`.
fn find_version(output: &str) -> Option<String> {
    output
        .split_whitespace()
        .map(|word| word.strip_prefix('v').unwrap_or(word).trim_end_matches(','))
        .find(|word| {
            word.starts_with(|c: char| c.is_ascii_digit()) && parse_version(word).is_some()
        })
        .map(str::to_owned)
}

/// The versions are from release notes; Docker: moby/moby#42604, podman: containers/common#945, containerd: the runtime-spec of
/// its go.mod.
static KINDS: [RuntimeKind; 7] = [
    kind("runc", "container of runc", Support::Runs(1, 1)),
    RuntimeKind {
        options: &["--cgroup-manager=disabled"],
        ..kind("crun", "container of crun", Support::Runs(0, 19))
    },
    kind("podman", "container of podman", Support::PassesOn(4, 1)),
    kind("docker", "container of docker", Support::PassesOn(23, 0)),
    kind(
        "containerd",
        "container of containerd",
        Support::PassesOn(1, 6),
    ),
    kind("runsc", "container of runsc", Support::Never),
    kind("kata-runtime", "container of kata-runtime", Support::Never),
];

const fn kind(name: &'static str, container: &'static str, support: Support) -> RuntimeKind {
    RuntimeKind {
        name,
        container,
        options: &[],
        support,
    }
}

/// Where distributions install runc; an ordinary user's PATH may lack these folders.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];
/// Enough for a busy host: no program waits for a daemon to print its version.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_found_in_the_output_of_each_runtime() {
        for (output, expected) in [
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
            assert_eq!(find_version(output).as_deref(), Some(expected));
        }
        assert_eq!(find_version("usage: runc COMMAND"), None);
    }

    #[test]
    fn runtime_before_listener_path_fails_the_check() {
        for (name, version, is_supported) in [
            ("runc", "1.0.3", false),
            ("runc", "1.1.0-rc.1", true),
            ("crun", "0.18", false),
            ("crun", "1.8.1", true),
            ("docker", "20.10.24+dfsg1", false),
        ] {
            let runtime = Runtime {
                kind: KINDS.iter().find(|kind| kind.name == name).unwrap(),
                path: PathBuf::from("/usr/bin/it"),
                version: Some(version.to_owned()),
            };
            let finding = runtime.finding().to_string();
            let verdict = if is_supported { "ok" } else { "FAIL" };
            assert!(finding.starts_with(verdict), "{finding}");
        }
    }
}

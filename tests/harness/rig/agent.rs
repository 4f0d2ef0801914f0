//! Containers of an OCI runtime, which know nothing of peername, and the agent that supervises them.
//!
//! A container has the programs of this machine, read-only, and the network of a lab's host. The agent has a host of its own.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::lab::{Host, OWN_PID_NAMESPACE, Process, Scratch, WAIT_LIMIT};
use crate::harness::peername::{BINARY, Peername};

/// An agent with its socket in a directory of its own. The agent's holder of descriptors (`peername agent hold`) ends after the
/// last container.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) process: Process,
    pub(crate) scratch: Scratch,
    host: Host,
}

/// A container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    Runc,
    Crun,
}

/// A container that is to be started.
#[derive(Debug)]
pub(crate) struct Container<'a> {
    pub(crate) name: &'a str,
    pub(crate) runtime: Runtime,
    /// A directory that it shares with this machine.
    pub(crate) scratch: &'a Scratch,
    /// The seccomp profile.
    pub(crate) profile: Value,
    /// The user in the container.
    pub(crate) user: u32,
    pub(crate) capabilities: &'a [&'a str],
}

impl Agent {
    /// Starts an agent that trusts the lab's balancer, with these options.
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::start_with(&[TRUST_LAB, options].concat())
    }

    /// Starts an agent with these options and no others.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        let (host, scratch) = (Host::new(), Scratch::new());
        let process = start(&host, &scratch, options);
        Self {
            process,
            scratch,
            host,
        }
    }

    /// Kills the agent, and waits for its end.
    #[track_caller]
    pub(crate) fn kill(&mut self) {
        self.process.signal(Signal::KILL);
        self.process.wait_exit(WAIT_LIMIT).expect("its end");
    }

    /// Starts an agent at the same socket in place of one that has ended.
    pub(crate) fn restart(&mut self, options: &[&str]) {
        self.process = start(&self.host, &self.scratch, &[TRUST_LAB, options].concat());
    }

    /// Starts another agent at the same socket, which takes over from this one. Returns the process of the earlier agent.
    pub(crate) fn start_successor(&mut self, options: &[&str]) -> Process {
        let next = start(&self.host, &self.scratch, &[TRUST_LAB, options].concat());
        std::mem::replace(&mut self.process, next)
    }

    /// The host that the agent runs on.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// The network namespace of that host, as [`Host::network`] names it.
    pub(crate) fn network(&self) -> PathBuf {
        self.host.network()
    }

    pub(crate) fn socket(&self) -> String {
        self.scratch.path_text("agent.sock")
    }

    /// The seccomp profile of containers of this policy.
    pub(crate) fn profile(&self, policy: &str) -> Value {
        profile(&self.socket(), policy)
    }
}

fn start(host: &Host, scratch: &Scratch, options: &[&str]) -> Process {
    let listen = format!("--listen=unix:{}", scratch.path_text("agent.sock"));
    let args = [&["agent", &listen], options].concat();
    let process = Process::start(host, BINARY, &args);
    process.wait_logged("containers: ");
    process
}

/// The profile of containers of this policy, of the agent with this socket.
pub(crate) fn profile(socket: &str, policy: &str) -> Value {
    print_profile(socket, &format!("--policy={policy}"))
}

/// The profile in this file, changed for the agent with this socket.
pub(crate) fn profile_from(file: &str, socket: &str) -> Value {
    print_profile(socket, &format!("--from={file}"))
}

/// The profile that this option prints, for the agent with this socket.
pub(crate) fn print_profile(socket: &str, option: &str) -> Value {
    let socket = format!("--socket={socket}");
    let output = Peername::run(&Host::new(), &["agent", "profile", &socket, option]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("a profile")
}

impl<'a> Container<'a> {
    /// A container of runc for root with [`USUAL_CAPABILITIES`].
    pub(crate) fn new(name: &'a str, scratch: &'a Scratch, profile: Value) -> Self {
        Self {
            name,
            runtime: Runtime::Runc,
            scratch,
            profile,
            user: 0,
            capabilities: USUAL_CAPABILITIES,
        }
    }

    /// Runs a program in the container, in the network of this host. The container ends with the returned process.
    pub(crate) fn run(&self, host: &Host, program: &[&str]) -> Process {
        let command = self.command(program);
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let (program, args) = words.split_first().expect("a command");
        Process::start_through(host, OWN_PID_NAMESPACE, program, args)
    }

    /// The command that runs a program in the container.
    pub(crate) fn command(&self, program: &[&str]) -> Vec<String> {
        let bundle = self.scratch.path(self.name);
        let root = bundle.join("root");
        fs::create_dir_all(&root).expect("a directory");
        let config = self.config(&root, program);
        fs::write(bundle.join("config.json"), config.to_string()).expect("a bundle");
        let (bundle, root) = (bundle.display(), root.display());
        let state = self.scratch.path_text("runtime");
        let runtime = match self.runtime {
            Runtime::Runc => "runc",
            Runtime::Crun => "crun",
        };
        // crun refuses a machine that has both versions of cgroups.
        let script = format!(
            "mount --bind / {root} && {{ ! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified; }} \
             && exec {runtime} --root {state} run --bundle {bundle} {}",
            self.name
        );
        ["sh", "-c", &script].map(str::to_owned).to_vec()
    }

    fn config(&self, root: &Path, program: &[&str]) -> Value {
        let shared = self.scratch.path_text("");
        let shared = shared.trim_end_matches('/');
        let mount = |destination: &str, kind: &str, options: &[&str]| json!({ "destination": destination, "type": kind, "source": kind, "options": options });
        let sets = ["bounding", "effective", "permitted"];
        let capabilities: serde_json::Map<_, _> = sets
            .iter()
            .map(|set| ((*set).to_owned(), json!(self.capabilities)))
            .collect();
        let namespaces = ["pid", "ipc", "uts", "mount"].map(|kind| json!({ "type": kind }));
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": { "uid": self.user, "gid": self.user },
                "args": program,
                "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "cwd": "/",
                "capabilities": capabilities,
                "noNewPrivileges": false
            },
            "root": { "path": root, "readonly": true },
            "hostname": self.name,
            "mounts": [
                mount("/proc", "proc", &[]),
                mount("/dev", "tmpfs", &["mode=755"]),
                mount("/dev/pts", "devpts", &["newinstance", "ptmxmode=0666", "mode=0620"]),
                mount("/dev/shm", "tmpfs", &["mode=1777"]),
                mount("/run", "tmpfs", &["mode=755"]),
                mount("/run/sshd", "tmpfs", &["mode=755"]),
                mount("/tmp", "tmpfs", &["mode=1777"]),
                { "destination": shared, "type": "bind", "source": shared, "options": ["rbind", "rw"] }
            ],
            "linux": {
                "cgroupsPath": format!("/peername-tests/{}-{}", std::process::id(), self.name),
                "namespaces": namespaces,
                "seccomp": self.profile
            }
        })
    }
}

const TRUST_LAB: &[&str] = &["--trust=10.81.0.0/24", "--trust=fd81::/64"];
/// The capabilities that podman grants by default.
const USUAL_CAPABILITIES: &[&str] = &[
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

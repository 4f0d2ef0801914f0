//! `peername doctor agent` names the cause if containers don't see their clients.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use serde_json::json;

use super::faults::Served;
use crate::harness::lab::{Host, Scratch, assert_contains, stderr_text, stdout_text};
use crate::harness::peername::BINARY;
use crate::harness::rig::agent::Agent;

/// `doctor` starts a container of each runtime, and connects to it as the balancer that the agent trusts.
#[test]
fn container_of_each_runtime_sees_the_client() {
    let agent = Agent::start(&["-v"]);
    let report = Doctor::for_agent(&agent).run(0, &["--balancer=10.81.0.2", "--port=443"]);
    for runtime in ["runc", "crun"] {
        assert_contains(
            &report,
            &[
                &format!("ok    {runtime}: "),
                &format!("ok    container of {runtime}: its server sees 203.0.113.7:40000"),
            ],
        );
        agent
            .process
            .wait_logged(&format!("container peername-doctor-{runtime}-"));
    }
    assert_contains(&report, &["an agent answers", "ok    seccomp profile: "]);
    assert_eq!(agent.process.count_logged("announced"), 0);
    let report = Doctor::for_agent(&agent).run(0, &["--balancer=fd81::2"]);
    assert_contains(&report, &["its server sees [2001:db8::7]:40000"]);
}

/// `doctor` names a balancer that the policy does not trust, a port that it does not have, and a policy that does not exist.
#[test]
fn policy_that_does_not_fit_the_balancer_is_named() {
    let agent = Agent::start(&["--ports=443"]);
    let doctor = Doctor::for_agent(&agent);
    let report = doctor.run(3, &["--balancer=192.0.2.10", "--port=443"]);
    assert_contains(
        &report,
        &["FAIL  container of runc: the agent refuses its connection from 192.0.2.10"],
    );
    let report = doctor.run(0, &["--port=443"]);
    assert_contains(
        &report,
        &["warn  container of runc: the agent supervises the container"],
    );
    let report = doctor.run(3, &["--balancer=10.81.0.2", "--port=80"]);
    assert_contains(
        &report,
        &[
            "its server sees 10.81.0.2:",
            "add 80 to `ports` of the policy",
        ],
    );
    let report = doctor.run(3, &["--policy=other"]);
    assert_contains(&report, &["can't accept: Function not implemented"]);
}

/// The agent has ended and left containers; there is no socket; or nothing listens on the socket.
#[test]
fn missing_agent_is_named() {
    let mut agent = Agent::start(&[]);
    let served = Served::new("kept", "level");
    let server = served.run(&agent);
    agent.kill();
    let report = Doctor::for_agent(&agent).run(3, &[]);
    assert_contains(
        &report,
        &["no agent answers, so accept(2) of the containers waits"],
    );
    drop(server);
    let scratch = Scratch::new();
    let doctor = Doctor::for_socket(scratch.path_text("agent.sock"));
    assert_contains(&doctor.run(3, &[]), &["don't start; start the agent"]);
    let socket = scratch.path("agent.sock");
    drop(UnixListener::bind(&socket).expect("a socket"));
    assert_contains(&doctor.run(3, &[]), &["Connection refused"]);
}

/// The socket's name has a space, so the command that is printed quotes it.
#[test]
fn agent_that_accepts_no_connection_is_named() {
    let scratch = Scratch::new();
    let path = scratch.path("an agent.sock");
    let socket = UnixListener::bind(&path).expect("a socket");
    rustix::net::listen(&socket, 0).expect("listen");
    let _queued = UnixStream::connect(&path).expect("a connection");
    let report = Doctor::for_socket(scratch.path_text("an agent.sock")).run(3, &[]);
    assert_contains(
        &report,
        &[
            "its backlog is full, so containers whose profile names it wait for their start",
            &format!("--listen 'unix:{}'", path.display()),
        ],
    );
}

/// The runtime's state is in the folder, and the container can be removed later only with that state.
#[test]
fn container_that_can_not_be_removed_keeps_its_folder() {
    let agent = Agent::start(&[]);
    let programs = Scratch::new();
    programs.write_program("runc", STUCK_RUNC);
    let mut doctor = Doctor::for_agent(&agent);
    doctor.path = Some(programs.path_text(""));
    let report = doctor.run(3, &[]);
    assert_contains(
        &report,
        &[
            "FAIL  container of runc: it does not start",
            "warn  container of runc: it could not be removed: it is stuck; ",
        ],
    );
    let (_, folder) = report.split_once(", and remove ").expect("its folder");
    let folder = folder.lines().next().expect("a line");
    assert!(folder.contains("peername-doctor-runc-"), "{folder}");
    fs::remove_dir_all(folder).expect("its folder");
}

/// A runc that has state for a container, and can't delete it.
const STUCK_RUNC: &str = r#"#!/bin/sh
case "$*" in
--version) echo runc version 1.1.5 ;;
*" run "*) for id; do :; done; mkdir -p "$2/$id"; echo it does not start >&2; exit 1 ;;
*" delete "*) echo it is stuck >&2; exit 1 ;;
esac
"#;

/// `doctor` checks the profile as `agent profile --check` does.
#[test]
fn profile_that_lacks_something_is_named() {
    let agent = Agent::start(&[]);
    let mut profile = agent.profile("default");
    let doctor = Doctor::for_agent(&agent);
    let file = agent.scratch.write("good.json", &profile.to_string());
    let checked = [&format!("--profile={file}"), "--balancer=10.81.0.2"];
    let report = doctor.run(0, &checked);
    assert_contains(&report, &["container of runc: its server sees 203.0.113.7"]);
    // The profile names the socket, so no option does.
    let report = Doctor::for_profile().run(0, &checked);
    assert_contains(&report, &["container of runc: its server sees 203.0.113.7"]);
    profile["syscalls"]
        .as_array_mut()
        .expect("rules")
        .push(json!({ "names": ["accept4"], "action": "SCMP_ACT_ALLOW" }));
    let file = agent.scratch.write("allowing.json", &profile.to_string());
    let report = doctor.run(3, &[&format!("--profile={file}")]);
    assert_contains(
        &report,
        &["FAIL  seccomp profile: ", "accept4 is allowed", "--from"],
    );
    assert!(!report.contains("container of"), "{report}");
}

/// A runtime that does not know listenerPath ignores it without an error, and starts containers that no agent supervises.
#[test]
fn runtime_without_listener_path_is_a_fault() {
    let agent = Agent::start(&[]);
    let folder = Scratch::new();
    // podman-docker installs podman as `docker`.
    for (name, printed) in [
        ("runc", "runc version 1.0.3"),
        ("docker", "podman version 4.3.1"),
    ] {
        folder.write_program(name, &format!("#!/bin/sh\necho {printed}\n"));
    }
    let mut doctor = Doctor::for_agent(&agent);
    doctor.path = Some(folder.path_text(""));
    let report = doctor.run(3, &["--balancer=10.81.0.2"]);
    assert_contains(
        &report,
        &[
            "FAIL  runc: 1.0.3, ",
            "does not know listenerPath",
            "install runc 1.1 or later",
            "ok    container of crun",
        ],
    );
    for absent in ["container of runc", "docker: "] {
        assert!(!report.contains(absent), "{absent}: {report}");
    }
}

/// A run of `peername doctor agent`.
struct Doctor {
    host: Host,
    /// The option that names the agent.
    socket: Option<String>,
    /// Folders that are searched before those of PATH.
    path: Option<String>,
}

impl Doctor {
    fn for_agent(agent: &Agent) -> Self {
        Self::for_socket(agent.socket())
    }

    fn for_socket(socket: String) -> Self {
        Self {
            socket: Some(format!("--socket={socket}")),
            ..Self::for_profile()
        }
    }

    /// Checks the agent that a profile names.
    fn for_profile() -> Self {
        Self {
            host: Host::new(),
            socket: None,
            path: None,
        }
    }

    /// Runs it with these options, and returns what it reports.
    #[track_caller]
    fn run(&self, code: i32, options: &[&str]) -> String {
        let mut path = std::env::var("PATH").expect("PATH");
        if let Some(folders) = &self.path {
            path = format!("{folders}:{path}");
        }
        // crun refuses a machine that has both versions of cgroups.
        let script =
            "! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified; exec \"$@\"";
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount", "sh", "-c", script, "sh", BINARY, "doctor", "agent",
            ])
            .args(&self.socket)
            .args(options)
            .env("PATH", path);
        let output = self.host.output(&mut command, "");
        let report = stdout_text(&output);
        let errors = stderr_text(&output);
        assert_eq!(output.status.code(), Some(code), "{report}\n{errors}");
        report
    }
}

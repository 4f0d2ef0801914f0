//! Containers with different programs, users and runtimes, and their seccomp profiles.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::super::coverage::starters::{addresses, i386};
use crate::harness::addr::{FRONT_V4, LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::header_bytes;
use crate::harness::lab::{Host, Lab, Process, Scratch, python, stdout_text};
use crate::harness::peername::{AS_NOBODY, Peername, copy_executable, words};
use crate::harness::rig::agent::{Agent, Container, Runtime, print_profile, profile, profile_from};
use crate::harness::rig::exec::{Libc, compiled_server};
use crate::harness::rig::exec_notify::{assert_sees, assert_sees_late_header};
use crate::harness::rig::proxy::connect_client;

/// The program is static, in a container of an ordinary user without capabilities.
#[test]
fn program_without_any_privilege_sees_its_client_in_every_way_of_accepting() {
    let agent = Agent::start(&[]);
    for accept in ["level", "edge", "block", "threads", "fork"] {
        let (lab, scratch) = (Lab::new(), Scratch::new());
        let container = Container {
            user: 65534,
            capabilities: &[],
            ..Container::new(accept, &scratch, agent.profile("default"))
        };
        let _server = run(&container, &lab, accept);
        for client in [fresh_client_v4(), fresh_client_v4()] {
            assert_sees(&lab, client);
        }
        assert_sees_late_header(&lab);
    }
}

/// An agent of an ordinary user supervises that user's containers. A container has a network of its own, which its user
/// namespace owns, or shares the host's.
#[test]
fn ordinary_user_supervises_containers_of_that_user() {
    for network in [&["--net"][..], &[]] {
        supervise_rootless(network);
    }
}

fn supervise_rootless(network: &[&str]) {
    let (host, scratch) = (Host::new(), Scratch::new());
    let binary = copy_executable(&host, &scratch);
    let socket = scratch.path_text("agent.sock");
    let listen = format!("--listen={socket}");
    let args = ["agent", &listen, "--trust=loopback", "-v"];
    let agent = Process::start_through(&host, AS_NOBODY, &binary, &args);
    agent.wait_logged("containers: 0");
    scratch.write("profile.json", &profile(&socket, "default").to_string());
    let script = scratch.write("rootless.sh", include_str!("rootless.sh"));
    let through = [
        AS_NOBODY,
        &["unshare", "--user", "--map-root-user", "--mount"],
        network,
        &["--pid", "--fork", "--kill-child", "--mount-proc"],
    ]
    .concat();
    let bundle = scratch.path_text("");
    let args = [script.as_str(), bundle.trim_end_matches('/')];
    let container = Process::start_through(&host, &through, "bash", &args);
    container.wait_logged("203.0.113.7 - - [");
    agent.wait_logged("container rootless: policy default");
}

/// The agent may not access the processes of another user. Their accept(2) fails with that error, and the supervisor stays for
/// further calls.
#[test]
fn server_that_the_agent_may_not_access_gets_an_error() {
    let (host, lab, scratch) = (Host::new(), Lab::new(), Scratch::new());
    let binary = copy_executable(&host, &scratch);
    let socket = scratch.path_text("agent.sock");
    let listen = format!("--listen={socket}");
    let args = ["agent", &listen, "--runtime-uid=0", "--trust=loopback"];
    let agent = Process::start_through(&host, AS_NOBODY, &binary, &args);
    agent.wait_logged("containers: 0");
    let script = r"import socket
listener = socket.create_server(('', 8443))
for attempt in range(2):
    try:
        listener.accept()
    except PermissionError:
        print('denied', attempt, flush=True)";
    let container = Container::new("foreign", &scratch, profile(&socket, "default"));
    let server = container.run(&lab.server, &["python3", "-c", script]);
    server.wait_logged("denied 1");
    agent.wait_logged("container foreign: can't copy descriptors of a process");
    assert_eq!(agent.count_logged("its supervisor has ended"), 0);
}

/// The program makes 32-bit system calls: it listens by socketcall(2), and accepts by socketcall(2) and by accept4(2) in turns.
/// podman's default profile has rules for socket(2) that can't be applied to socketcall(2). So it denies socketcall(2), and the
/// program can't listen.
#[cfg(target_arch = "x86_64")]
#[test]
fn program_of_32_bits_sees_its_client_or_can_not_listen() {
    let agent = Agent::start(&[]);
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let program = scratch.path_text("program");
    fs::copy(i386(), &program).expect("a copy");
    let allowing = r#"{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_X86"]}"#;
    let file = scratch.write("allowing.json", allowing);
    let profile = profile_from(&file, &agent.socket());
    let container = Container::new("i386", &scratch, profile);
    let server = container.run(&lab.server, &[&program]);
    let server = server.wait_listening(&[LISTEN_V4]);
    for client in [fresh_client_v4(), fresh_client_v4()] {
        let conn = connect_client(&lab, LISTEN_V4, client);
        assert_eq!(addresses(&conn.recv_to_end().0), [client; 2]);
    }
    drop(server);
    let container = Container::new("denied", &scratch, agent.profile("default"));
    let mut denied = container.run(&lab.server, &[&program]);
    denied.assert_exits(1);
}

/// The kernel allows a process only one seccomp listener, which the agent has. So `exec --mode notify` in a container fails,
/// and names EBUSY.
#[test]
fn supervisor_in_a_container_of_the_agent_says_why_it_can_not_start() {
    let agent = Agent::start(&[]);
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let container = Container::new("nested", &scratch, agent.profile("default"));
    let binary = copy_executable(&lab.server, &scratch);
    let line = format!("{binary} exec --mode=notify --trust=any -- true");
    let args = words(&line);
    let mut nested = container.run(&lab.server, &args);
    nested.assert_exits(125);
    nested.wait_logged("EBUSY");
}

/// crun connects to the socket once without sending anything. The agent does not log that as a container that was not
/// announced.
#[test]
fn container_of_crun_sees_its_client() {
    let agent = Agent::start(&[]);
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let container = Container {
        runtime: Runtime::Crun,
        ..Container::new("crun", &scratch, agent.profile("default"))
    };
    let _server = run(&container, &lab, "level");
    assert_sees(&lab, fresh_client_v4());
    assert_eq!(agent.process.count_logged("announced"), 0);
}

/// With `agent profile --dst` getsockname(2) returns the header's destination. Without it the agent is not asked.
#[test]
fn dst_option_of_the_profile_shows_the_headers_destination() {
    let agent = Agent::start(&[]);
    let script = r"import socket
conn, _ = socket.create_server(('10.81.0.1', 8443)).accept()
conn.sendall(b'%s %d' % (conn.getsockname()[0].encode(), conn.getsockname()[1]))";
    for (name, option, shown) in [
        ("shown", "--dst", FRONT_V4),
        ("own", "--policy=default", LISTEN_V4),
    ] {
        let (lab, scratch) = (Lab::new(), Scratch::new());
        let profile = print_profile(&agent.socket(), option);
        let container = Container::new(name, &scratch, profile);
        let server = container.run(&lab.server, &python(script));
        let _server = server.wait_listening(&[LISTEN_V4]);
        let header = header_bytes::v2(fresh_client_v4(), FRONT_V4, &[]);
        let conn = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &header);
        let expected = format!("{} {}", shown.ip(), shown.port());
        assert_eq!(conn.recv_text_to_end(), expected, "{name}");
    }
}

/// The profile sends accept(2) and the like to the agent, and denies io_uring, whose accept requests would pass the filter.
#[test]
fn profile_sends_socket_calls_to_the_agent_and_denies_rings() {
    let agent = Agent::start(&[]);
    let profile = agent.profile("mail");
    assert_eq!(profile["listenerPath"], json!(agent.socket()));
    assert_eq!(profile["listenerMetadata"], json!("mail"));
    let actions = |name: &str| -> Vec<&str> {
        let rules = profile["syscalls"].as_array().expect("rules");
        let has = |rule: &&Value| {
            rule["names"]
                .as_array()
                .is_some_and(|names| names.contains(&json!(name)))
        };
        rules
            .iter()
            .filter(has)
            .filter_map(|rule| rule["action"].as_str())
            .collect()
    };
    for name in ["accept", "accept4", "getpeername", "listen"] {
        assert_eq!(actions(name), ["SCMP_ACT_NOTIFY"], "{name}");
    }
    for name in ["io_uring_setup", "socketcall", "kexec_load"] {
        assert_eq!(actions(name), ["SCMP_ACT_ERRNO"], "{name}");
    }
    assert_eq!(actions("read"), ["SCMP_ACT_ALLOW"]);
}

/// Each of the refused profiles would let a container accept a connection without the agent.
#[test]
fn check_names_what_a_profile_lacks() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let check = |profile: &Value| {
        let file = scratch.write("profile.json", &profile.to_string());
        let check = format!("--check={file}");
        let output = Peername::run(&host, &["agent", "profile", &check]);
        let printed = stdout_text(&output);
        (output.status.code(), printed)
    };
    let good = profile("/run/peername-agent/agent.sock", "default");
    let (code, printed) = check(&good);
    assert!(code == Some(0) && printed.ends_with(": ok\n"), "{printed}");
    let with_rule = |rule: Value| {
        let mut profile = good.clone();
        profile["syscalls"]
            .as_array_mut()
            .expect("rules")
            .push(rule);
        profile
    };
    let mut elsewhere = good.clone();
    elsewhere["listenerPath"] = json!("/run/other.sock");
    let mut conditional = good.clone();
    for rule in conditional["syscalls"].as_array_mut().expect("rules") {
        if rule["action"] == "SCMP_ACT_NOTIFY" {
            rule["args"] = json!([{ "index": 0, "value": 3, "op": "SCMP_CMP_EQ" }]);
        }
    }
    for (profile, lack) in [
        (
            json!({ "defaultAction": "SCMP_ACT_ALLOW" }),
            "accept is allowed",
        ),
        (
            with_rule(json!({ "names": ["accept4"], "action": "SCMP_ACT_ALLOW" })),
            "accept4 is allowed",
        ),
        (
            with_rule(json!({ "names": ["io_uring_setup"], "action": "SCMP_ACT_ALLOW" })),
            "io_uring_setup is allowed",
        ),
        (elsewhere, "the agent is not asked"),
        (conditional, "without conditions"),
    ] {
        let (code, printed) = check(&profile);
        assert!(
            code == Some(3) && printed.contains(lack),
            "{lack}: {printed}"
        );
    }
}

/// Runs the server of `server.c` in a container, and waits until it listens.
pub(super) fn run(container: &Container<'_>, lab: &Lab, accept: &str) -> Process {
    start(container, lab, accept).wait_listening(&[LISTEN_V4])
}

/// Runs the server of `server.c` in a container.
pub(super) fn start(container: &Container<'_>, lab: &Lab, accept: &str) -> Process {
    let server = copied_server(lab, container.scratch);
    let accept = format!("--accept={accept}");
    container.run(&lab.server, &[&server, &accept, "--brief"])
}

/// A copy of the server of `server.c` that containers with this directory reach.
pub(super) fn copied_server(lab: &Lab, scratch: &Scratch) -> String {
    copied_program(lab, &compiled_server(Libc::Static), scratch)
}

/// A copy of this program that containers with this directory reach. cp(1) writes the copy: if this process did, a child that
/// another thread starts meanwhile would inherit the open file, and the copy could not be executed (ETXTBSY).
pub(super) fn copied_program(lab: &Lab, program: &str, scratch: &Scratch) -> String {
    let copy = scratch.path_text("server");
    if !Path::new(&copy).exists() {
        lab.server.run("cp", &[program, &copy]);
    }
    copy
}

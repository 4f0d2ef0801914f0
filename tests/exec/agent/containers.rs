//! What runs in a container, and who starts it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::json;

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, Process, Scratch, wait_until};
use crate::harness::rig::agent::{Agent, Container, Runtime};
use crate::harness::rig::exec_notify::{compiled_accept_server, recv_addresses};
use crate::harness::rig::proxy::header_for;

/// The program of `accept.c` is static, in a container of nobody without capabilities, where no_new_privs is set.
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
        let client = fresh_client_v4();
        let header = header_for(client);
        let (begin, rest) = header.split_at(9);
        let slow = Conn::connect_and_send(&lab.balancer, LISTEN_V4, begin);
        assert_sees(&lab, fresh_client_v4());
        slow.send(rest);
        assert_eq!(recv_addresses(&slow), [client; 2], "{accept}");
    }
}

/// crun connects to the socket once before it has anything to send.
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

/// Each has a table and a supervisor of its own, and the agent has nothing left of those that have ended.
#[test]
fn containers_come_and_go_without_a_leak() {
    let agent = Agent::start(&[]);
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let round = |name: &str| {
        lab.server.wait_connection_refused(LISTEN_V4);
        let container = Container::new(name, &scratch, agent.profile("default"));
        let _server = run(&container, &lab, "level");
        assert_sees(&lab, fresh_client_v4());
    };
    round("first");
    let before = agent.process.count_fds();
    for number in 0..20 {
        round(&format!("next-{number}"));
    }
    wait_until("the agent has no descriptor more", || {
        agent.process.count_fds() <= before
    });
}

/// A ring would accept past the filter.
#[test]
fn profile_denies_rings_and_changes_nothing_else() {
    let agent = Agent::start(&[]);
    let profile = agent.profile("mail");
    assert_eq!(profile["listenerPath"], json!(agent.socket()));
    assert_eq!(profile["listenerMetadata"], json!("mail"));
    let actions = |name: &str| -> Vec<&str> {
        let rules = profile["syscalls"].as_array().expect("rules");
        let has = |rule: &&serde_json::Value| {
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

/// Runs the server of `accept.c` in a container, and waits until it listens.
pub(super) fn run(container: &Container<'_>, lab: &Lab, accept: &str) -> Process {
    start(container, lab, accept).wait_listening(&[LISTEN_V4])
}

/// Runs the server of `accept.c` in a container.
pub(super) fn start(container: &Container<'_>, lab: &Lab, accept: &str) -> Process {
    let copy = container.scratch.path_text("server");
    if !Path::new(&copy).exists() {
        fs::copy(compiled_accept_server(), &copy).expect("a copy");
    }
    let accept = format!("--accept={accept}");
    container.run(&lab.server, &[&copy, &accept, "--family=4"])
}

/// Asserts that the server reports this client, by accept(2) and by getpeername(2).
#[track_caller]
pub(super) fn assert_sees(lab: &Lab, client: SocketAddr) {
    let conn = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &header_for(client));
    assert_eq!(recv_addresses(&conn), [client; 2]);
}

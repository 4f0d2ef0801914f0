//! Wake-up connections of a supervisor that has ended.

use peername_sys::process::limits;
use rustix::process::Signal;

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, Scratch, wait_until};
use crate::harness::rig::agent::{Agent, Container};
use crate::harness::rig::proxy::header_for;

/// A wake-up connection is in the accept backlog when a reload ends its supervisor. The next one recognizes it: the server gets no
/// connection of this host, although headers are optional. The connection that it was for is reset, counted and logged.
#[test]
fn reload_leaves_the_server_no_wakeup_connection() {
    let files = Scratch::new();
    let policy = "[[agent]]\ntrust = [\"10.81.0.0/24\"]\nheader = \"optional\"\n";
    let config = format!("--config={}", files.write("agent.toml", policy));
    let agent = Agent::start_with(&[&config, "-v"]);
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let container = Container::new("paused", &scratch, agent.profile("default"));
    let resume = scratch.path_text("resume");
    let program = ["/usr/bin/python3", "-uc", PAUSING, &resume];
    let server = container.run(&lab.server, &program);
    let server = server.wait_listening(&[LISTEN_V4]);

    let late = header_for(fresh_client_v4());
    let slow = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &late[..20]);
    wait_until("its arrival", || slow.is_all_acknowledged());
    let serve = || {
        let client = fresh_client_v4();
        let _conn = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &header_for(client));
        server.wait_printed(&format!("accepted {client}"));
    };
    serve();
    slow.send(&late[20..]);
    wait_until("a wake-up connection", || {
        let filter = "src 127.0.0.1 and dport = :8443";
        let wakeups = lab
            .server
            .run("ss", &["-Htn", "state", "established", filter]);
        !wakeups.is_empty()
    });
    agent.process.signal(Signal::HUP);
    slow.wait_reset();
    agent
        .process
        .wait_logged("the agent was reloaded, or ended");
    scratch.write("resume", "");
    serve();
    assert_eq!(server.count_logged("accepted "), 2, "{}", server.log());
}

/// Right after the log was written, a reload refuses more connections than the table has room for. Each has its line.
#[test]
fn reload_logs_each_connection_that_it_refuses() {
    limits::raise_open_files().expect("descriptors for the connections");
    let agent = Agent::start(&["-v"]);
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let container = Container::new("waiting", &scratch, agent.profile("default"));
    let resume = scratch.path_text("paused");
    scratch.write("paused", "");
    let program = ["/usr/bin/python3", "-uc", PAUSING, &resume];
    let server = container.run(&lab.server, &program);
    let server = server.wait_listening(&[LISTEN_V4]);
    let header = header_for(fresh_client_v4());
    let open = |_| Conn::connect_and_send(&lab.balancer, LISTEN_V4, &header[..20]);
    let waiting: Vec<_> = (0..WAITING).map(open).collect();
    // All of them were accepted before this one is.
    let client = fresh_client_v4();
    let _conn = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &header_for(client));
    server.wait_printed(&format!("accepted {client}"));
    Conn::assert_reset(&lab.balancer, LISTEN_V4, b"no header\r\n");
    agent.process.signal(Signal::HUP);
    for conn in waiting {
        conn.wait_reset();
    }
    wait_until("a line for each", || {
        agent
            .process
            .count_logged("the agent was reloaded, or ended")
            == WAITING
    });
}

/// More than the refusals that the table has room for.
const WAITING: usize = 270;
/// Prints its clients. After the first one it accepts no other until a file exists.
const PAUSING: &str = include_str!("pausing.py");

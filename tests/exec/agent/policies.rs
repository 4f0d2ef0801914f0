//! Policies of containers, and users that may announce containers.

use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::process::Command;

use rustix::process::Signal;

use super::containers::{run, start};
use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::admin::{ADMIN, get, wait_metric};
use crate::harness::conn::Conn;
use crate::harness::lab::{
    Host, Lab, LeasedFile, Process, Scratch, WAIT_LIMIT, assert_contains, assert_fails, wait_until,
};
use crate::harness::peername::{AS_NOBODY, BINARY, Peername};
use crate::harness::rig::agent::{Agent, Container};
use crate::harness::rig::exec_notify::assert_sees;
use crate::harness::rig::proxy::{connect_client, header_for};

const TWO_POLICIES: &str = r#"
[[agent]]
name = "strict"
trust = ["10.81.0.0/24"]
ports = [8443]

[[agent]]
name = "banned"
trust = ["10.81.0.0/24"]
deny-client = ["0.0.0.0/0"]
"#;

#[test]
fn containers_have_the_policy_that_their_profile_names() {
    let files = Scratch::new();
    let config = format!("--config={}", files.write("agent.toml", TWO_POLICIES));
    let agent = Agent::start_with(&[&config, "-v"]);
    let (lab, scratch) = (Lab::new(), Scratch::new());
    {
        let container = Container::new("one", &scratch, agent.profile("strict"));
        let _server = run(&container, &lab, "level");
        agent.process.wait_logged("container one: policy strict");
        assert_sees(&lab, fresh_client_v4());
        Conn::assert_reset(&lab.balancer, LISTEN_V4, b"no header\r\n");
        agent
            .process
            .wait_logged("container one: refused a connection");
    }
    // The next container listens at the same address.
    lab.balancer.wait_connection_refused(LISTEN_V4);
    let container = Container::new("two", &scratch, agent.profile("banned"));
    let _server = run(&container, &lab, "level");
    let header = header_for(fresh_client_v4());
    Conn::assert_reset(&lab.balancer, LISTEN_V4, &header);
    agent
        .process
        .wait_logged("container two: refused a connection");
}

/// Each container's supervisor reads the lists again.
#[test]
fn list_that_can_not_be_read_is_reported_with_the_container() {
    let files = Scratch::new();
    let list = files.write("denied", "192.0.2.7\n");
    let policy = format!("--deny-client=@{list}");
    let agent = Agent::start(&[&policy, ADMIN]);
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let container = Container::new("one", &scratch, agent.profile("default"));
    let _server = run(&container, &lab, "level");
    assert_sees(&lab, fresh_client_v4());
    files.write("denied", "nonsense\n");
    let stale = "the previous lists stay in force";
    // The supervisor checks the file for changes when a client comes.
    wait_until("the line", || {
        assert_sees(&lab, fresh_client_v4());
        agent.process.count_logged(stale) > 0
    });
    let log = agent.process.log();
    let line = log.lines().find(|line| line.contains(stale));
    assert!(
        line.is_some_and(|line| line.contains("container one: ")),
        "{log}"
    );
    wait_metric(agent.host(), &[], "peername_lists_stale 1");
}

/// The counters are sums over all containers, the ended ones included.
#[test]
fn admin_endpoint_counts_over_all_containers() {
    let agent = Agent::start(&[ADMIN]);
    let metric = |line: &str| wait_metric(agent.host(), &[], line);
    let (lab, scratch) = (Lab::new(), Scratch::new());
    metric("peername_agent_containers 0");
    for number in 1..3 {
        lab.server.wait_connection_refused(LISTEN_V4);
        let name = format!("counted-{number}");
        let container = Container::new(&name, &scratch, agent.profile("default"));
        let _server = run(&container, &lab, "level");
        assert_sees(&lab, fresh_client_v4());
        Conn::assert_reset(&lab.balancer, LISTEN_V4, b"no header\r\n");
        let _check = Conn::connect_and_send(&lab.balancer, LISTEN_V4, b"PROXY UNKNOWN\r\n");
        metric("peername_agent_containers 1");
        let handed_over = 2 * number;
        metric(&format!(
            "peername_connections_total{{protocol=\"tcp\",outcome=\"handed_over\"}} {handed_over}"
        ));
        metric(&format!(
            "peername_header_errors_total{{reason=\"no_header\"}} {number}"
        ));
    }
    metric("peername_agent_containers 0");
    metric("peername_header_errors_total{reason=\"no_header\"} 2");
    assert_eq!(get(agent.host(), &[], "/healthz"), "ok\n200");
}

/// Without a policy no header would be read, so the container gets no connection.
#[test]
fn container_of_an_unknown_policy_can_not_accept() {
    let agent = Agent::start(&[]);
    let (lab, scratch) = (Lab::new(), Scratch::new());
    // Root's are all logged.
    for name in ["lost", "another"] {
        let container = Container::new(name, &scratch, agent.profile("other"));
        let mut server = start(&container, &lab, "block");
        server.assert_exits(1);
        server.wait_logged("Function not implemented");
        let expected = format!("container {name}: no policy has the name \"other\"");
        agent.process.wait_logged(&expected);
    }
}

#[test]
fn admin_endpoint_counts_reloads() {
    let files = Scratch::new();
    let open = "[[agent]]\ntrust = [\"10.81.0.0/24\"]\n";
    let config = format!("--config={}", files.write("agent.toml", open));
    let agent = Agent::start_with(&[&config, ADMIN]);
    let metric = |line: &str| wait_metric(agent.host(), &[], line);
    metric("peername_reloads_total{result=\"applied\"} 0");
    agent.process.signal(Signal::HUP);
    metric("peername_reloads_total{result=\"applied\"} 1");
    files.write("agent.toml", "nonsense");
    agent.process.signal(Signal::HUP);
    metric("peername_reloads_total{result=\"refused\"} 1");
    let status = get(agent.host(), &[], "/status");
    assert_contains(&status, &["the agent's log has the reason"]);
    assert_eq!(get(agent.host(), &[], "/healthz"), "ok\n200");
}

#[test]
fn reload_replaces_the_policies_or_keeps_the_previous_ones() {
    let files = Scratch::new();
    let open = "[[agent]]\ntrust = [\"10.81.0.0/24\"]\n";
    let config = format!("--config={}", files.write("agent.toml", open));
    let agent = Agent::start_with(&[&config]);
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let container = Container::new("one", &scratch, agent.profile("default"));
    let _server = run(&container, &lab, "block");
    assert_sees(&lab, fresh_client_v4());
    files.write("agent.toml", "[[agent]]\ntrust = [\"192.0.2.0/24\"]\n");
    agent.process.signal(Signal::HUP);
    agent.process.wait_logged("the policies were reloaded");
    let conn = connect_client(&lab, LISTEN_V4, fresh_client_v4());
    conn.wait_reset();
    files.write("agent.toml", "[[agent]]\ntrust = [\"10.81.0.0/40\"]\n");
    agent.process.signal(Signal::HUP);
    agent
        .process
        .wait_logged("the previous policies stay in force");
    files.write("agent.toml", open);
    agent.process.signal(Signal::HUP);
    agent
        .process
        .wait_logged_times("the policies were reloaded", 2);
    assert_sees(&lab, fresh_client_v4());
}

/// Whether the earlier agent runs or has been killed.
#[test]
fn containers_that_are_taken_over_have_the_policies_of_the_next_agent() {
    let mut agent = Agent::start(&[]);
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let container = Container::new("one", &scratch, agent.profile("default"));
    let _server = run(&container, &lab, "level");
    let assert_denied = || {
        let header = header_for(fresh_client_v4());
        Conn::assert_reset(&lab.balancer, LISTEN_V4, &header);
    };
    assert_sees(&lab, fresh_client_v4());
    let deny = ["--deny-client=0.0.0.0/0"];
    let mut earlier = agent.start_successor(&deny);
    earlier.wait_success(WAIT_LIMIT);
    assert_denied();
    agent.kill();
    agent.restart(&[]);
    assert_sees(&lab, fresh_client_v4());
    agent.kill();
    agent.restart(&deny);
    assert_denied();
}

/// The configuration file is replaced by rename, and its policies are in force. After a mistake in it the previous ones stay.
#[test]
fn watched_file_reloads_the_policies_without_a_signal() {
    let files = Scratch::new();
    let config = files.write("agent.toml", "[[agent]]\ntrust = [\"192.0.2.0/24\"]\n");
    let agent = Agent::start_with(&[&format!("--config={config}"), "--watch"]);
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let container = Container::new("one", &scratch, agent.profile("default"));
    let _server = run(&container, &lab, "level");
    Conn::assert_reset(&lab.balancer, LISTEN_V4, &header_for(fresh_client_v4()));
    let next = files.write("next.toml", "[[agent]]\ntrust = [\"10.81.0.0/24\"]\n");
    std::fs::rename(next, &config).expect("a rename");
    agent.process.wait_logged("the policies were reloaded");
    assert_sees(&lab, fresh_client_v4());
    files.write("agent.toml", "[[agent]]\ntrust = [\"10.81.0.0/40\"]\n");
    agent
        .process
        .wait_logged("the previous policies stay in force");
    assert_sees(&lab, fresh_client_v4());
    // The broken file is read once, checked for changes at most once more, and not polled.
    let switches = || -> u64 {
        let switches = agent.process.status_field("voluntary_ctxt_switches");
        switches.parse().expect("a number")
    };
    agent.process.wait_idle();
    let before = switches();
    std::thread::sleep(std::time::Duration::from_secs(2));
    let wakeups = switches() - before;
    assert!(wakeups <= 1, "{wakeups} in two seconds");
    assert_eq!(
        agent
            .process
            .count_logged("the previous policies stay in force"),
        1
    );
    assert_eq!(agent.process.count_logged("the policies were reloaded"), 1);
}

/// The file does not change when it becomes readable again, so the read has to be retried.
#[test]
fn watched_file_that_can_not_be_read_for_a_while_is_read_later() {
    let files = Scratch::new();
    let table = |network: &str| format!("[[agent]]\ntrust = [\"{network}\"]\n");
    let config = files.write("agent.toml", &table("192.0.2.0/24"));
    let agent = Agent::start_with(&[&format!("--config={config}"), "--watch"]);
    let text = table("10.81.0.0/24");
    let leased = LeasedFile::replace(agent.host(), &files, "agent.toml", &text);
    let stale = "the previous policies stay in force";
    agent.process.wait_logged(stale);
    // The read is retried twice a second, and its failure is logged once in ten seconds.
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(agent.process.count_logged(stale) <= 2);
    drop(leased);
    agent.process.wait_logged("the policies were reloaded");
}

/// The directory is tried once more when the agent has taken over the socket.
#[test]
fn directory_that_can_not_be_watched_is_logged_once_at_the_start() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let config = format!("--config={}", scratch.write("agent.toml", TWO_POLICIES));
    let listen = format!("--listen={}", scratch.path_text("agent.sock"));
    let run = "echo 0 > /proc/sys/user/max_inotify_watches && exec \"$@\"";
    let through = [
        "unshare",
        "--user",
        "--map-root-user",
        "sh",
        "-c",
        run,
        "sh",
    ];
    let args = ["agent", &listen, &config, "--watch"];
    let agent = Process::start_through(&host, &through, BINARY, &args);
    agent.wait_logged("containers: 0");
    assert_eq!(agent.count_logged("--watch: can't watch "), 1);
}

/// The directory of the file is replaced, and then the one above it, which no event reports.
#[test]
fn watched_directory_that_is_replaced_reloads_the_policies() {
    let files = Scratch::new();
    let table = |address: &str| format!("[[agent]]\ntrust = [\"{address}\"]\n");
    let write = |path: &str, address: &str| {
        let path = files.path(path);
        let directory = path.parent().expect("a directory");
        std::fs::create_dir_all(directory).expect("a directory");
        std::fs::write(&path, table(address)).expect("a file");
    };
    let rename =
        |from: &str, to: &str| std::fs::rename(files.path(from), files.path(to)).expect("a rename");
    write("etc/current/agent.toml", "192.0.2.0/24");
    write("etc/next/agent.toml", "192.0.2.0/25");
    let config = format!("--config={}", files.path_text("etc/current/agent.toml"));
    let agent = Agent::start_with(&[&config, "--watch"]);
    let reloaded = "the policies were reloaded";
    rename("etc/current", "etc/before");
    rename("etc/next", "etc/current");
    agent.process.wait_logged_times(reloaded, 1);
    write("etc/current/agent.toml", "192.0.2.0/26");
    agent.process.wait_logged_times(reloaded, 2);
    write("next/current/agent.toml", "192.0.2.0/27");
    rename("etc", "before");
    rename("next", "etc");
    agent.process.wait_logged_times(reloaded, 3);
}

/// A symbolic link to a directory is replaced, as Kubernetes does when a ConfigMap changes.
#[test]
fn watched_symbolic_link_reloads_the_policies() {
    let files = Scratch::new();
    for (version, address) in [("1", "192.0.2.0/24"), ("2", "10.81.0.0/24")] {
        std::fs::create_dir(files.path(version)).expect("a directory");
        let text = format!("[[agent]]\ntrust = [\"{address}\"]\n");
        files.write(&format!("{version}/agent.toml"), &text);
    }
    symlink("1", files.path("..data")).expect("a link");
    symlink("..data/agent.toml", files.path("agent.toml")).expect("a link");
    let config = format!("--config={}", files.path_text("agent.toml"));
    let agent = Agent::start_with(&[&config, "--watch"]);
    symlink("2", files.path("..next")).expect("a link");
    std::fs::rename(files.path("..next"), files.path("..data")).expect("a rename");
    agent.process.wait_logged("the policies were reloaded");
    // Since the link was replaced, the agent watches the directory that it leads to.
    files.write("2/agent.toml", "[[agent]]\ntrust = [\"10.81.0.0/40\"]\n");
    agent
        .process
        .wait_logged("the previous policies stay in force");
}

#[test]
fn other_users_can_not_announce_containers() {
    let agent = Agent::start(&["--runtime-uid=65533"]);
    let socket = agent.socket();
    let output = Command::new("setpriv")
        .args([
            "--reuid=65534",
            "--clear-groups",
            "socat",
            "-u",
            "/dev/null",
        ])
        .arg(format!("UNIX-CONNECT:{socket}"))
        .output()
        .expect("socat (make setup)");
    drop(output);
    agent
        .process
        .wait_logged("by user 65534, who may not announce containers");
}

/// A user of `--runtime-uid` may have only a share of the connections that can be open at once, so root still connects.
#[test]
fn user_with_many_unfinished_registrations_keeps_no_other_out() {
    let agent = Agent::start(&["--runtime-uid=65534"]);
    let script = "import socket, sys, time\n\
         clients = [socket.socket(socket.AF_UNIX) for _ in range(200)]\n\
         for client in clients: client.connect(sys.argv[1])\n\
         time.sleep(60)";
    let host = Host::new();
    let socket = agent.socket();
    let _idle = Process::start_through(
        &host,
        AS_NOBODY,
        "/usr/bin/python3",
        &["-c", script, &socket],
    );
    agent
        .process
        .wait_logged("user 65534 has 128 unfinished registrations already");
    let mut announced = UnixStream::connect(&socket).expect("the agent");
    announced.write_all(b"{}").expect("a write");
    drop(announced);
    agent.process.wait_logged("no container process state");
}

/// The users of `--runtime-uid` share a number of containers. Those of root are not counted.
#[test]
fn user_with_many_containers_keeps_no_other_out() {
    // With root 32 users.
    let users: Vec<_> = (65504..65535)
        .map(|user| format!("--runtime-uid={user}"))
        .collect();
    let options: Vec<&str> = users.iter().map(String::as_str).collect();
    let mut agent = Agent::start(&options);
    let host = Host::new();
    let socket = agent.socket();
    let announce = |through: &[&str], count| {
        let args = ["-c", include_str!("many_containers.py"), &socket, count];
        Process::start_through(&host, through, "/usr/bin/python3", &args)
    };
    let _idle = announce(AS_NOBODY, "40");
    let refused = "user 65534 has 32 containers already";
    agent.process.wait_logged(refused);
    // The next agent counts the containers that it takes over.
    agent.kill();
    agent.restart(&options);
    let _more = announce(AS_NOBODY, "1");
    agent.process.wait_logged(refused);
    announce(&[], "33").wait_printed("announced");
    assert_eq!(agent.process.count_logged("user 0 has"), 0);
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let container = Container::new("other", &scratch, agent.profile("default"));
    let _server = run(&container, &lab, "level");
    assert_sees(&lab, fresh_client_v4());
}

#[test]
fn messages_that_announce_no_container_are_refused() {
    let agent = Agent::start(&[]);
    let send = |bytes: &[u8]| {
        let mut socket = UnixStream::connect(agent.socket()).expect("the agent");
        socket.write_all(bytes).expect("a write");
    };
    send(b"{}");
    agent.process.wait_logged("no container process state");
    send(br#"{"fds":["seccompFd"],"metadata":"","state":{"id":"web"}}"#);
    agent
        .process
        .wait_logged("no descriptor came with its message");
}

#[test]
fn invalid_options_and_configurations_are_wrong_usage() {
    let host = Host::new();
    let files = Scratch::new();
    let twice = "[[agent]]\ntrust = [\"any\"]\n[[agent]]\ntrust = [\"any\"]\n";
    let config = format!("--config={}", files.write("agent.toml", twice));
    let listen = format!("--listen=unix:{}", files.path_text("agent.sock"));
    let run = |args: &[&str]| Peername::run(&host, &[&["agent", &listen], args].concat());
    assert_fails(
        &run(&[&config]),
        2,
        &["is that of another policy", "line 3"],
    );
    assert_fails(&run(&[]), 2, &["--trust"]);
    let relative = Peername::run(&host, &["agent", "--trust=any", "--listen=agent.sock"]);
    assert_fails(&relative, 2, &["absolute path"]);
    assert_fails(&run(&["--config=/nonexistent"]), 2, &["no such file"]);
}

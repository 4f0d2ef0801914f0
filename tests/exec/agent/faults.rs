//! Each process of the agent is killed, and the containers go on.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use super::containers::{run, start};
use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, Lab, Process, Scratch, WAIT_LIMIT, wait_until};
use crate::harness::peername::BINARY;
use crate::harness::rig::agent::{Agent, Container, profile};
use crate::harness::rig::exec_notify::{
    assert_reported, assert_sees, brief_report, connect_as, wait_helper_pid,
};

/// The next supervisor answers also an accept(2) that has been waiting since before the kill.
#[test]
fn killed_supervisor_is_replaced() {
    let (agent, served) = (Agent::start(&[]), Served::new("block", "block"));
    let _server = served.run(&agent);
    for _ in 0..3 {
        assert_sees(&served.lab, fresh_client_v4());
        kill(supervisor(&served.lab));
        assert_sees(&served.lab, fresh_client_v4());
    }
    agent.process.wait_logged_times(
        "its supervisor has ended (signal: 9 (SIGKILL)); starting another",
        3,
    );
}

/// The kernel hands a call to one supervisor only, so the next one has to learn of it otherwise.
#[test]
fn call_that_a_killed_supervisor_has_just_received_is_answered() {
    let (agent, served) = (Agent::start(&[]), Served::new("received", "block"));
    let _server = served.run(&agent);
    assert_sees(&served.lab, fresh_client_v4());
    let script = served
        .scratch
        .write("kill.py", include_str!("kill_after_receive.py"));
    // getpeername(2) comes first, and then the next accept(2).
    for received in ["1", "2"] {
        let supervisor = supervisor(&served.lab).to_string();
        let args = ["-u", &script, &supervisor, received];
        let killer = Process::start(agent.host(), "/usr/bin/python3", &args);
        killer.wait_printed("attached");
        assert_sees(&served.lab, fresh_client_v4());
        killer.wait_printed("killed");
        assert_sees(&served.lab, fresh_client_v4());
    }
}

/// Nothing is accepted while there is no agent, and the next agent answers the calls that wait.
#[test]
fn containers_wait_for_the_next_agent() {
    for accept in ["block", "level", "threads"] {
        let (mut agent, served) = (Agent::start(&[]), Served::new("waits", accept));
        let _server = served.run(&agent);
        let half = Conn::connect_and_send(&served.lab.balancer, LISTEN_V4, b"PROXY");
        assert_sees(&served.lab, fresh_client_v4());
        agent.kill();
        let client = fresh_client_v4();
        let early = connect_as(&served.lab, client);
        // A connection that was accepted, and whose header was not complete, is lost.
        half.wait_reset();
        early.assert_stays_open(Duration::from_millis(300));
        agent.restart(&[]);
        assert_reported(&early, client);
        assert_sees(&served.lab, fresh_client_v4());
    }
}

/// The runtime starts the container without an agent, and the server sees its clients as soon as there is an agent.
#[test]
fn container_that_is_started_without_an_agent_waits() {
    let (mut agent, first) = (Agent::start(&[]), Served::new("first", "level"));
    let _first = first.run(&agent);
    agent.kill();
    let second = Served::new("second", "level");
    let profile = agent.profile("default");
    let container = Container::new("second", &second.scratch, profile);
    let server = start(&container, &second.lab, "level");
    agent.restart(&[]);
    let _server = server.wait_listening(&[LISTEN_V4]);
    assert_sees(&second.lab, fresh_client_v4());
    assert_sees(&first.lab, fresh_client_v4());
}

/// A second agent at the same socket is an upgrade of the first.
#[test]
fn next_agent_takes_over_from_the_one_that_runs() {
    let (mut agent, served) = (Agent::start(&[]), Served::new("upgraded", "block"));
    let _server = served.run(&agent);
    assert_sees(&served.lab, fresh_client_v4());
    let mut first = agent.start_successor(&[]);
    assert_sees(&served.lab, fresh_client_v4());
    first.wait_success(WAIT_LIMIT);
    first.wait_logged("another agent has taken over");
    assert_sees(&served.lab, fresh_client_v4());
}

/// An agent that can't serve its admin endpoint ends before the earlier agent does. If the address may be the earlier agent's, it
/// takes over, and serves without the endpoint.
#[test]
fn containers_are_supervised_although_the_next_agent_has_no_admin_endpoint() {
    let (mut agent, served) = (Agent::start(&[]), Served::new("endpoint", "block"));
    let _server = served.run(&agent);
    let listen = format!("--listen={}", agent.socket());
    let args = ["agent", &listen, "--trust=any", "--admin=192.0.2.1:9100"];
    let mut failing = Process::start(agent.host(), BINARY, &args);
    let status = failing.wait_exit(WAIT_LIMIT).expect("its end");
    assert!(!status.success(), "{}", failing.log());
    assert_sees(&served.lab, fresh_client_v4());
    assert_eq!(agent.process.count_logged("has taken over"), 0);
    let bind = || TcpListener::bind("127.0.0.1:9100").expect("bind(2)");
    let _other = agent.host().enter(bind);
    let mut first = agent.start_successor(&["--admin=127.0.0.1:9100"]);
    first.wait_success(WAIT_LIMIT);
    agent.process.wait_logged("the agent goes on without");
    assert_sees(&served.lab, fresh_client_v4());
}

/// Other users may connect to the socket only while `--runtime-uid` names one of them.
#[test]
fn kept_socket_has_the_mode_of_the_next_agent() {
    let mut agent = Agent::start(&[]);
    let mode = |agent: &Agent| {
        let metadata = fs::metadata(agent.socket()).expect("the socket");
        metadata.permissions().mode() & 0o777
    };
    assert_eq!(mode(&agent), 0o600);
    for (options, expected) in [(&["--runtime-uid=65533"][..], 0o666), (&[], 0o600)] {
        let mut previous = agent.start_successor(options);
        previous.wait_success(WAIT_LIMIT);
        assert_eq!(mode(&agent), expected);
    }
}

/// While there is no agent, another process listens at the path of the socket that is kept.
#[test]
fn agent_leaves_the_socket_of_another_process_alone() {
    let (mut agent, served) = (Agent::start(&[]), Served::new("replaced", "block"));
    let _server = served.run(&agent);
    agent.kill();
    let socket = agent.socket();
    fs::remove_file(&socket).expect("the socket");
    let other = UnixListener::bind(&socket).expect("bind(2)");
    let mode = || fs::metadata(&socket).expect("the socket").permissions();
    let before = mode();
    let args = ["agent", &format!("--listen={socket}"), "--trust=any"];
    let next = Process::start(agent.host(), BINARY, &args);
    next.wait_logged("another process listens there");
    assert_eq!(mode(), before);
    drop(other);
    agent.restart(&[]);
    assert_sees(&served.lab, fresh_client_v4());
}

/// The holder of descriptors and the agent are killed in turn.
#[test]
fn killed_holder_is_replaced() {
    let (mut agent, served) = (Agent::start(&[]), Served::new("held", "block"));
    let _server = served.run(&agent);
    kill(wait_helper_pid("peername-hold", &agent.network()));
    agent
        .process
        .wait_logged("the holder of descriptors has ended; another one has them now");
    assert_sees(&served.lab, fresh_client_v4());
    agent.kill();
    agent.restart(&[]);
    assert_sees(&served.lab, fresh_client_v4());
}

/// Another holder can't be started, because a directory is in the place of its socket. That is tried each second, and logged
/// once.
#[test]
fn holder_that_can_not_be_replaced_is_reported_once() {
    let agent = Agent::start(&[]);
    let holder = wait_helper_pid("peername-hold", &agent.network());
    let socket = agent.scratch.path("agent.sock.held");
    fs::remove_file(&socket).expect("the holder's socket");
    fs::create_dir(&socket).expect("mkdir");
    kill(holder);
    let failure = "no other one can be used: ";
    agent.process.wait_logged(failure);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(agent.process.count_logged(failure), 1);
    fs::remove_dir(&socket).expect("rmdir");
    agent.process.wait_logged("another one has them now");
}

/// The holder can't keep the descriptors of a new container. The container is served, and the log says that containers fail if
/// the agent ends.
#[test]
fn holder_without_a_free_descriptor_is_reported() {
    let (agent, served) = (Agent::start(&[]), Served::new("discarded", "level"));
    let holder = wait_helper_pid("peername-hold", &agent.network());
    let none_free = Rlimit {
        current: Some(3),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    prlimit(Some(holder), Resource::Nofile, none_free).expect("prlimit(2)");
    let _server = served.run(&agent);
    agent
        .process
        .wait_logged("the holder of descriptors can't keep ");
    assert_sees(&served.lab, fresh_client_v4());
}

/// How often a server has reported the right client, none, or a wrong one.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) right: usize,
    pub(super) lost: usize,
    pub(super) wrong: Vec<String>,
}

/// Connects as a new client, and notes what the server reports to it.
pub(super) fn connect_once(seen: &mut Seen, lab: &Lab) {
    let client = fresh_client_v4();
    seen.note(client, &connect_as(lab, client));
}

impl Seen {
    /// Notes what the server reports to this client.
    pub(super) fn note(&mut self, client: SocketAddr, conn: &Conn) {
        let (answer, _) = conn.recv_to_end();
        let answer = String::from_utf8(answer).expect("text");
        if answer.is_empty() {
            self.lost += 1;
        } else if answer == brief_report(client) {
            self.right += 1;
        } else {
            self.wrong.push(format!("{client}: {answer}"));
        }
    }
}

/// A supervisor ends with its agent: two of them would answer one container's calls.
#[test]
fn supervisor_ends_with_its_agent() {
    let (mut agent, served) = (Agent::start(&[]), Served::new("alone", "level"));
    let _server = served.run(&agent);
    assert_sees(&served.lab, fresh_client_v4());
    let before = supervisor(&served.lab);
    agent.kill();
    wait_until("the supervisor has ended", || {
        !fs::exists(format!("/proc/{}", before.as_raw_nonzero())).unwrap_or(true)
    });
    agent.restart(&[]);
    assert_sees(&served.lab, fresh_client_v4());
}

/// Where there is a service manager (here `manager.py`), it keeps the agent's descriptors. A killed agent gets them back. If the
/// socket's file was removed meanwhile, the agent makes another, and the manager keeps that socket alone.
#[test]
fn service_manager_keeps_the_descriptors_and_starts_the_agent_again() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let (notify, socket) = (scratch.path_text("notify"), scratch.path_text("agent.sock"));
    let script = scratch.write("manager.py", include_str!("manager.py"));
    let listen = format!("--listen={socket}");
    let command = [BINARY, "agent", &listen, "--trust=10.81.0.0/24"];
    let args = [&[script.as_str(), &notify], &command[..]].concat();
    let manager = Process::start(&host, "/usr/bin/python3", &args);
    manager.wait_printed("stored 1");
    let served = Served::new("managed", "block");
    let container = Container::new("managed", &served.scratch, profile(&socket, "default"));
    let server = run(&container, &served.lab, "block");
    manager.wait_printed("stored 5");
    for agents in 2..4 {
        assert_sees(&served.lab, fresh_client_v4());
        let pid = last_number(&manager, "pid ");
        fs::remove_file(&socket).expect("the socket");
        kill(Pid::from_raw(pid).expect("a process"));
        manager.wait_logged_times("containers: 1", agents - 1);
    }
    assert_sees(&served.lab, fresh_client_v4());
    drop(server);
    wait_until("only the socket is left", || {
        last_number(&manager, "stored ") == 1
    });
}

/// A container that ends while there is no agent leaves descriptors with the holder. The next agent supervises only the
/// container that still runs.
#[test]
fn container_that_ended_without_an_agent_is_not_taken_over() {
    let (mut agent, first) = (Agent::start(&[]), Served::new("first", "level"));
    let second = Served::new("second", "level");
    let (ended, _kept) = (first.run(&agent), second.run(&agent));
    agent.kill();
    drop(ended);
    first.lab.server.wait_connection_refused(LISTEN_V4);
    agent.restart(&[]);
    agent.process.wait_logged("containers: 1");
    assert_sees(&second.lab, fresh_client_v4());
}

/// The last number that the process has printed after this text.
fn last_number(process: &Process, before: &str) -> i32 {
    let log = process.log();
    log.lines()
        .filter_map(|line| line.strip_prefix(before))
        .next_back()
        .and_then(|number| number.parse().ok())
        .expect("a number")
}

/// An agent can answer the calls only of processes in its own PID namespace or below.
#[test]
fn agent_in_another_pid_namespace_says_so() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let socket = scratch.path_text("agent.sock");
    let args = ["agent", &format!("--listen={socket}"), "--trust=any"];
    let agent = Process::start_in_pid_namespace(&host, BINARY, &args);
    agent.wait_logged("containers: 0");
    let served = Served::new("foreign", "block");
    let container = Container::new("foreign", &served.scratch, profile(&socket, "default"));
    let _server = start(&container, &served.lab, "block");
    agent.wait_logged(
        "container foreign: its supervisor has ended: its processes are in no PID namespace below",
    );
}

/// The recorded calls have thread ids of the first agent's PID namespace, which are those of other threads in the second
/// agent's. So the second agent supervises no container of the first.
#[test]
fn agent_in_another_pid_namespace_takes_no_container_over() {
    let (mut agent, served) = (Agent::start(&[]), Served::new("abandoned", "block"));
    let mut server = served.run(&agent);
    assert_sees(&served.lab, fresh_client_v4());
    agent.kill();
    let listen = format!("--listen={}", agent.socket());
    let args = ["agent", &listen, "--trust=any"];
    let next = Process::start_in_pid_namespace(agent.host(), BINARY, &args);
    next.wait_logged(
        "a container of an earlier agent: its calls are recorded in another PID namespace",
    );
    next.wait_logged("containers: 0");
    server.assert_exits(1);
    server.wait_logged("Function not implemented");
}

/// A server of `server.c` in a container.
pub(super) struct Served {
    pub(super) lab: Lab,
    scratch: Scratch,
    name: &'static str,
    accept: &'static str,
}

impl Served {
    pub(super) fn new(name: &'static str, accept: &'static str) -> Self {
        Self {
            lab: Lab::new(),
            scratch: Scratch::new(),
            name,
            accept,
        }
    }

    pub(super) fn run(&self, agent: &Agent) -> Process {
        let profile = agent.profile("default");
        let container = Container::new(self.name, &self.scratch, profile);
        run(&container, &self.lab, self.accept)
    }
}

pub(super) fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).expect("kill");
}

/// The supervisor of the container in the lab's server.
pub(super) fn supervisor(lab: &Lab) -> Pid {
    wait_helper_pid("peername-notify", &lab.server.network())
}

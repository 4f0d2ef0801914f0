//! Many containers and many connections: nothing is left over, and no server sees a wrong client.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

use super::containers::run;
use super::faults::{Seen, connect_once, kill, supervisor};
use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::admin::{ADMIN, wait_metric};
use crate::harness::lab::{Lab, Scratch, WAIT_LIMIT, wait_until};
use crate::harness::rig::agent::{Agent, Container};
use crate::harness::rig::exec_notify::{assert_sees, wait_helper_pid};
use crate::harness::rig::load::{SetOnDrop, number_from_env};

/// After 30 containers, or as many as `PEERNAME_TEST_CONTAINERS` says, the agent keeps no more than before. 1000 take minutes.
#[test]
fn containers_come_and_go_without_a_leak() {
    let agent = Agent::start(&[ADMIN]);
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let round = |name: &str| {
        lab.server.wait_connection_refused(LISTEN_V4);
        let container = Container::new(name, &scratch, agent.profile("default"));
        let _server = run(&container, &lab, "level");
        assert_sees(&lab, fresh_client_v4());
    };
    (0..5).for_each(|number| round(&format!("first-{number}")));
    wait_metric(agent.host(), &[], "peername_agent_containers 0");
    let (before, memory) = (Kept::count(&agent), agent.process.anonymous_kib());
    let rounds = number_from_env("PEERNAME_TEST_CONTAINERS", 30);
    (0..rounds).for_each(|number| round(&format!("next-{number}")));
    wait_metric(agent.host(), &[], "peername_agent_containers 0");
    wait_until("nothing more is kept", || Kept::count(&agent) == before);
    let more = agent.process.anonymous_kib().saturating_sub(memory);
    println!("{rounds} containers: {before:?} before and after, {more} KiB more");
    assert!(more < 512, "{more} KiB more than {memory}");
}

/// What the agent and its holder of descriptors keep of containers.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    descriptors: usize,
    children: usize,
    stored: usize,
}

impl Kept {
    fn count(agent: &Agent) -> Self {
        let pid = agent.process.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let holder = wait_helper_pid("peername-hold", &agent.network()).as_raw_nonzero();
        Self {
            descriptors: agent.process.count_fds(),
            children: children.expect("its children").split_whitespace().count(),
            stored: fs::read_dir(format!("/proc/{holder}/fd"))
                .expect("the holder")
                .count(),
        }
    }
}

/// Agents, supervisors and holders are killed or replaced during 100,000 connections, or as many as `PEERNAME_TEST_CHURN` says.
/// A fault loses few connections, and closes them; the server never sees a wrong client.
#[test]
fn server_sees_no_wrong_client_while_processes_of_the_agent_are_killed() {
    let count = number_from_env("PEERNAME_TEST_CHURN", 100_000);
    let mut agent = Agent::start(&[]);
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let script = scratch.write("enduring.py", include_str!("enduring.py"));
    let container = Container::new("churn", &scratch, agent.profile("default"));
    let server = container.run(&lab.server, &["python3", "-u", &script]);
    let server = server.wait_listening(&[LISTEN_V4]);
    let (served, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut disturbances = Disturbances::default();
    let seen: Vec<Seen> = thread::scope(|scope| {
        let end = SetOnDrop(&is_over);
        let clients = [(); 4].map(|()| {
            scope.spawn(|| {
                let mut seen = Seen::default();
                while !is_over.load(Relaxed) {
                    connect_once(&mut seen, &lab);
                    served.fetch_add(1, Relaxed);
                }
                seen
            })
        });
        while served.load(Relaxed) < count {
            disturbances.cause_next(&mut agent, &lab);
            let before = served.load(Relaxed);
            wait_until("connections between two faults", || {
                served.load(Relaxed) >= (before + BETWEEN_FAULTS).min(count)
            });
        }
        drop(end);
        clients
            .map(|client| client.join().expect("a client"))
            .into()
    });
    let right: usize = seen.iter().map(|seen| seen.right).sum();
    let wrong: Vec<_> = seen.iter().flat_map(|seen| &seen.wrong).collect();
    let lost: usize = seen.iter().map(|seen| seen.lost).sum();
    let zero = server.count_logged("accept(2) returned 0");
    println!("{right} right, {lost} lost, accept(2) returned 0 {zero} times, {disturbances:?}");
    assert_eq!(wrong, [""; 0], "{right} right, {lost} lost");
    assert!(right > 100 * lost, "{right} right, {lost} lost");
}

/// How often each process was killed, and an agent replaced.
#[derive(Debug, Default)]
struct Disturbances {
    agents: usize,
    supervisors: usize,
    takeovers: usize,
    holders: usize,
}

impl Disturbances {
    /// Kills one of the processes, or replaces the agent: each in turn.
    fn cause_next(&mut self, agent: &mut Agent, lab: &Lab) {
        let caused = self.agents + self.supervisors + self.takeovers + self.holders;
        match caused % 4 {
            0 => {
                agent.kill();
                agent.restart(&[]);
                self.agents += 1;
            }
            1 => {
                kill(supervisor(lab));
                self.supervisors += 1;
            }
            2 => {
                let mut first = agent.start_successor(&[]);
                first.wait_success(WAIT_LIMIT);
                self.takeovers += 1;
            }
            _ => {
                kill(wait_helper_pid("peername-hold", &agent.network()));
                agent.process.wait_logged("another one has them now");
                self.holders += 1;
            }
        }
    }
}

/// Connections between two faults. The test allows a fault to lose a hundredth of them.
const BETWEEN_FAULTS: usize = 500;

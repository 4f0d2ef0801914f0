//! Containers that do what no server does: none of it reaches another container, and no server sees a wrong client.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::containers::{copied_program, copied_server};
use super::faults::{Seen, Served, supervisor};
use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, Lab, Process, Scratch};
use crate::harness::rig::agent::{Agent, Container};
use crate::harness::rig::exec::{Libc, compile};
use crate::harness::rig::exec_notify::{assert_sees, assert_sees_late_header, cpu_ticks};
use crate::harness::rig::proxy::header_for;

/// Each container has a supervisor process of its own, so a flooded supervisor does not starve that of another container. The
/// other's rate of clients is compared with its rate beside sixteen threads that only compute, since a busy machine lowers
/// both.
#[test]
fn container_that_floods_its_supervisor_does_not_starve_another() {
    let (agent, served) = (Agent::start(&[]), Served::new("served", "level"));
    let _server = served.run(&agent);
    let mut best = [0_usize; 3];
    for _ in 0..3 {
        for (best, how) in best.iter_mut().zip([None, Some("spin"), Some("flood")]) {
            let lab = Lab::new();
            let neighbour = Neighbour::new(lab, "neighbour");
            let mut running = how.map(|how| neighbour.run(&agent, how));
            *best = (*best).max(count_served(&served.lab, Duration::from_secs(1)));
            if let Some(running) = &mut running {
                assert!(running.is_alive(), "{how:?}: {}", running.log());
            }
            if how == Some("flood") {
                let used = cpu_ticks(supervisor(&neighbour.lab));
                println!("the flood's supervisor used {used} hundredths of a second");
                assert!(used >= FLOOD_TICKS, "{used} hundredths of a second");
            }
        }
    }
    let [alone, beside_spin, beside_flood] = best;
    println!(
        "clients a second: {alone} alone, {beside_spin} beside 16 threads that compute, {beside_flood} beside the flood"
    );
    // A difference below a factor of five may be due to the scheduler or to other load of this machine.
    assert!(
        beside_flood * 5 >= beside_spin,
        "{beside_flood}, {beside_spin} beside threads that compute"
    );
}

/// A thread unmaps the buffer into which the supervisor writes the client, and changes its length. The call may fail then, as
/// in the kernel, and the next one returns the connection.
#[test]
fn buffers_that_change_while_the_supervisor_writes_them_harm_no_container() {
    let (agent, served) = (Agent::start(&[]), Served::new("served", "level"));
    let _server = served.run(&agent);
    let neighbour = Neighbour::new(Lab::new(), "changing");
    let _running = neighbour.run(&agent, "sockaddr");
    for _ in 0..100 {
        for _ in 0..3 {
            assert_sees(&neighbour.lab, fresh_client_v4());
        }
        assert_sees(&served.lab, fresh_client_v4());
    }
    assert_eq!(agent.process.count_logged("its supervisor has ended"), 0);
}

/// The headers are read by the supervisor of the accepting container, by that container's policy.
#[test]
fn container_that_receives_a_listener_of_another_sees_the_clients() {
    let (agent, lab) = (Agent::start(&[]), Lab::new());
    let _passed = Passed::start(&agent, &lab.server, &lab);
    for _ in 0..3 {
        assert_sees_late_header(&lab);
        Conn::assert_reset(&lab.balancer, LISTEN_V4, b"no header\r\n");
    }
}

/// When a header comes late, the supervisor wakes a waiting accept(2) by connecting to its listener. It can't connect to a
/// listener of another network, so a client whose header comes late may get no answer here.
#[test]
fn container_that_receives_a_listener_of_another_network_sees_the_clients_of_complete_headers() {
    let (agent, lab) = (Agent::start(&[]), Lab::new());
    let _passed = Passed::start(&agent, &Host::new(), &lab);
    for _ in 0..10 {
        assert_sees(&lab, fresh_client_v4());
        Conn::assert_reset(&lab.balancer, LISTEN_V4, b"no header\r\n");
        let mut seen = Seen::default();
        let client = fresh_client_v4();
        let header = header_for(client);
        let (first, rest) = header.split_at(9);
        let slow = Conn::connect_and_send(&lab.balancer, LISTEN_V4, first);
        assert_sees(&lab, fresh_client_v4());
        slow.send_if_open(&[rest, b"hello"].concat());
        seen.note(client, &slow);
        assert_eq!(seen.wrong, [""; 0]);
    }
}

/// Two containers, one of which has passed its listener to the other.
struct Passed {
    _scratch: Scratch,
    _receiver: Process,
    _sender: Process,
}

impl Passed {
    /// Starts the container that receives the listener on this host, and the other one on the lab's server.
    fn start(agent: &Agent, receiving_host: &Host, lab: &Lab) -> Self {
        let scratch = Scratch::new();
        let script = scratch.write("passed.py", include_str!("passed_listener.py"));
        let socket = scratch.path_text("channel");
        let run = |host: &Host, name: &str, action: &str| {
            let container = Container::new(name, &scratch, agent.profile("default"));
            container.run(host, &["python3", "-u", &script, action, &socket])
        };
        let receiver = run(receiving_host, "receiver", "receive");
        receiver.wait_printed("waiting");
        let sender = run(&lab.server, "sender", "pass");
        receiver.wait_printed("received");
        Self {
            _receiver: receiver,
            _sender: sender,
            _scratch: scratch,
        }
    }
}

/// A process of the container has a network of its own, and makes the first calls that a supervisor gets, or is itself the server at
/// a listener of the container. The supervisor can wake the listener nevertheless.
#[test]
fn supervisor_is_in_the_network_of_the_listener_and_not_of_the_caller() {
    for action in [None, Some("accept")] {
        let (agent, lab, scratch) = (Agent::start(&[]), Lab::new(), Scratch::new());
        let script = scratch.write("sandboxed.py", include_str!("sandboxed.py"));
        let container = Container::new("sandboxed", &scratch, agent.profile("default"));
        let program: Vec<_> = ["python3", "-u", &script]
            .into_iter()
            .chain(action)
            .collect();
        let _server = container
            .run(&lab.server, &program)
            .wait_listening(&[LISTEN_V4]);
        assert_sees_late_header(&lab);
        agent.process.signal(Signal::HUP);
        agent.process.wait_logged("the policies were reloaded");
        // Meanwhile the child calls.
        thread::sleep(Duration::from_millis(300));
        assert_sees_late_header(&lab);
    }
}

/// The supervisor may read and write the memory also of processes that have changed their user or their namespaces.
#[test]
fn server_that_changes_its_user_or_its_namespaces_sees_its_clients() {
    let agent = Agent::start(&[]);
    let changes: [&[&str]; 3] = [
        &["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"],
        &["unshare", "--user", "--map-root-user"],
        &[
            "unshare",
            "--user",
            "--map-root-user",
            "--pid",
            "--fork",
            "--mount",
        ],
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let (lab, scratch) = (Lab::new(), Scratch::new());
        let name = format!("changed-{number}");
        let container = Container::new(&name, &scratch, agent.profile("default"));
        let server = copied_server(&lab, &scratch);
        let program = [change, &[&server, "--accept=fork", "--brief"]].concat();
        let _server = container
            .run(&lab.server, &program)
            .wait_listening(&[LISTEN_V4]);
        for _ in 0..6 {
            assert_sees(&lab, fresh_client_v4());
        }
    }
}

/// A container that runs `hostile.c`.
struct Neighbour {
    lab: Lab,
    scratch: Scratch,
    name: &'static str,
}

impl Neighbour {
    fn new(lab: Lab, name: &'static str) -> Self {
        Self {
            lab,
            scratch: Scratch::new(),
            name,
        }
    }

    fn run(&self, agent: &Agent, how: &str) -> Process {
        let program = copied_program(&self.lab, compiled_hostile(), &self.scratch);
        let container = Container::new(self.name, &self.scratch, agent.profile("default"));
        container
            .run(&self.lab.server, &[&program, how])
            .wait_listening(&[LISTEN_V4])
    }
}

/// CPU time that a flooded supervisor uses at least in a second. An idle one uses none; this one shares the processors with
/// the sixteen threads that flood it.
const FLOOD_TICKS: u64 = 3;

/// Counts the clients that are served, one after the other, in this time.
fn count_served(lab: &Lab, time: Duration) -> usize {
    let end = Instant::now() + time;
    let mut served = 0;
    while Instant::now() < end {
        assert_sees(lab, fresh_client_v4());
        served += 1;
    }
    served
}

/// The path of `hostile.c`, linked statically, built once.
fn compiled_hostile() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| compile("exec/agent/hostile.c", "hostile", Libc::Static, &[]))
}

//! Faults between program and supervisor, and how each ends.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, WAIT_LIMIT, assert_fails, python, wait_until};
use crate::harness::peername::{BINARY, Peername};
use crate::harness::rig::exec::{Libc, NOTIFY, ProgramRig, ServerRig, compiled_server};
use crate::harness::rig::exec_notify::{NotifyRig, assert_sees, kill_pid};
use crate::harness::rig::proxy::header_for;

/// Without a supervisor the kernel answers ENOSYS to accept(2), and a server may spin. So the program and its descendants are
/// terminated, in whatever call they wait.
#[test]
fn killed_supervisor_ends_the_program() {
    for variant in ["block", "threads", "fork", "level", "edge"] {
        let mut exec = NotifyRig::start_variant(variant);
        assert_sees(&exec.lab, fresh_client_v4());
        kill_pid(exec.supervisor_pid());
        assert_ended_by_sigterm(&mut exec);
        exec.lab.balancer.wait_connection_refused(LISTEN_V4);
    }
}

/// The program has not accepted anything yet, and waits elsewhere than in accept(2).
#[test]
fn supervisor_killed_at_once_ends_the_program() {
    let mut exec = NotifyRig::start_variant("level");
    kill_pid(exec.supervisor_pid());
    assert_ended_by_sigterm(&mut exec);
}

/// Asserts that the monitor has ended the program: after ENOSYS from accept(2) the server would exit with 1.
#[track_caller]
fn assert_ended_by_sigterm(exec: &mut NotifyRig) {
    exec.process.assert_killed_by(Signal::TERM);
}

/// Processes that read bytes of untrusted peers keep only the privileges they use: CAP_SYS_PTRACE and
/// CAP_KILL, the monitor CAP_KILL alone.
#[test]
fn helpers_keep_no_other_privileges() {
    let exec = NotifyRig::start_variant("fork");
    assert_sees(&exec.lab, fresh_client_v4());
    for (helper, kept) in [
        (exec.supervisor_pid(), CAP_SYS_PTRACE | CAP_KILL),
        (exec.monitor_pid(), CAP_KILL),
    ] {
        let status = fs::read_to_string(format!("/proc/{}/status", helper.as_raw_nonzero()));
        let status = status.expect("its status");
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            u64::from_str_radix(value.expect(name).trim(), 16).expect("a number")
        };
        assert_eq!([field("CapPrm:"), field("CapEff:")], [kept; 2], "{status}");
        assert_eq!(
            [field("CapBnd:"), field("CapInh:"), field("CapAmb:")],
            [0; 3],
            "{status}"
        );
        assert_eq!(field("NoNewPrivs:"), 1);
    }
}

/// SIGKILL follows where SIGTERM has no effect.
#[test]
fn killed_supervisor_ends_a_program_that_ignores_sigterm() {
    let mut exec = NotifyRig::start_ignoring_sigterm("fork");
    kill_pid(exec.supervisor_pid());
    assert!(exec.process.wait_exit(WAIT_LIMIT).is_some());
}

/// No helper is left that could end the program. If the program goes on after the error of accept(2), neither it nor its
/// children and threads ever get a connection, so none of them reports the balancer as its client.
#[test]
fn accept_fails_once_supervisor_and_monitor_are_killed() {
    for order in [
        KillOrder::SupervisorFirst,
        KillOrder::MonitorFirst,
        KillOrder::MonitorEndsProgram,
    ] {
        let mut exec = NotifyRig::start(&[], REPEATING);
        let client = fresh_client_v4();
        let served = exec.connect_and_send(&header_for(client));
        assert_eq!(served.recv_to_end().0, client.to_string().as_bytes());
        kill_helpers(&mut exec, order);
        for name in ACCEPTING {
            exec.process
                .wait_printed(&format!("{name}: Function not implemented"));
        }
        for client in [fresh_client_v4(), fresh_client_v4()] {
            let conn = exec.connect_and_send(&header_for(client));
            conn.assert_stays_open(Duration::from_millis(200));
        }
    }
}

#[derive(Clone, Copy)]
enum KillOrder {
    SupervisorFirst,
    MonitorFirst,
    /// The supervisor, and then the monitor within the two seconds that it gives the program to end after SIGTERM.
    MonitorEndsProgram,
}

fn kill_helpers(exec: &mut NotifyRig, order: KillOrder) {
    let (supervisor, monitor) = (exec.supervisor_pid(), exec.monitor_pid());
    match order {
        KillOrder::SupervisorFirst => kill_at_once([supervisor, monitor]),
        KillOrder::MonitorFirst => kill_at_once([monitor, supervisor]),
        KillOrder::MonitorEndsProgram => {
            kill_pid(supervisor);
            assert!(exec.process.wait_exit(Duration::from_millis(300)).is_none());
            kill_pid(monitor);
        }
    }
}

/// Suspends both first, so that neither can react to the other's end.
fn kill_at_once(helpers: [Pid; 2]) {
    for helper in helpers {
        rustix::process::kill_process(helper, Signal::STOP).expect("kill");
    }
    helpers.into_iter().for_each(kill_pid);
}

/// A connection that waits for its header is closed, not left hanging.
#[test]
fn killed_supervisor_closes_waiting_connections() {
    let exec = NotifyRig::start_variant("level");
    let waiting = exec.connect_and_send(b"PROXY TCP4 ");
    waiting.assert_stays_open(Duration::from_millis(100));
    kill_pid(exec.supervisor_pid());
    waiting.recv_to_end();
}

#[test]
fn killed_monitor_is_replaced() {
    let mut exec = NotifyRig::start_variant("block");
    let first = exec.monitor_pid();
    kill_pid(first);
    wait_until("another monitor", || exec.monitor_pid() != first);
    assert_sees(&exec.lab, fresh_client_v4());
    kill_pid(exec.supervisor_pid());
    assert_ended_by_sigterm(&mut exec);
}

/// The supervisor retries without a call of the program, since the server waits in its first accept(2).
#[test]
fn monitor_that_can_not_be_started_is_started_later() {
    let mut exec = NotifyRig::start_variant("block");
    let waiting = exec.connect_and_send(b"PROXY TCP4 ");
    waiting.assert_stays_open(Duration::from_millis(100));
    let supervisor = exec.supervisor_pid();
    let none_free = Rlimit {
        current: Some(3),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    let previous_limit =
        prlimit(Some(supervisor), Resource::Nofile, none_free).expect("prlimit(2)");
    kill_pid(exec.monitor_pid());
    exec.process.wait_logged("no monitor of the supervisor");
    prlimit(Some(supervisor), Resource::Nofile, previous_limit).expect("prlimit(2)");
    exec.monitor_pid();
    assert_sees(&exec.lab, fresh_client_v4());
    kill_pid(supervisor);
    assert!(exec.process.wait_exit(WAIT_LIMIT).is_some());
}

/// A service manager that sends SIGTERM to a whole control group means to stop the program.
#[test]
fn supervisor_ignores_sigterm() {
    let exec = NotifyRig::start_variant("block");
    for helper in [exec.supervisor_pid(), exec.monitor_pid()] {
        rustix::process::kill_process(helper, Signal::TERM).unwrap();
    }
    assert_sees(&exec.lab, fresh_client_v4());
}

#[test]
fn helpers_end_with_the_program() {
    let mut exec = NotifyRig::start_variant("exit");
    let (supervisor, monitor) = (exec.supervisor_pid(), exec.monitor_pid());
    assert_sees(&exec.lab, fresh_client_v4());
    exec.process.assert_exits(7);
    [supervisor, monitor].into_iter().for_each(wait_ended);
}

/// The supervisor ends also when the program is killed in the middle of a call.
#[test]
fn program_killed_in_accept_leaves_nothing() {
    let mut exec = NotifyRig::start_variant("threads");
    let supervisor = exec.supervisor_pid();
    exec.process.signal(Signal::KILL);
    assert!(exec.process.wait_exit(WAIT_LIMIT).is_some());
    wait_ended(supervisor);
}

/// Waits until a helper has ended, or is a zombie that waits for whichever process reaps orphans here.
fn wait_ended(helper: Pid) {
    wait_until("its end", || {
        let path = format!("/proc/{}/stat", helper.as_raw_nonzero());
        let stat = fs::read_to_string(path).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
}

/// A signal interrupts accept(2), as without peername. The supervisor holds a listener only while a call waits on it.
#[test]
fn closed_listener_frees_its_port_at_once() {
    let exec = NotifyRig::start_variant("interrupt");
    // A signal has no effect before the server waits in accept(2), so it is repeated.
    wait_until("accept(2) is interrupted", || {
        exec.process.signal(Signal::USR1);
        std::thread::sleep(Duration::from_millis(50));
        let log = exec.process.log();
        log.contains("bound again after: Interrupted system call")
    });
    assert_sees(&exec.lab, fresh_client_v4());
}

/// The header completes after the listener was closed: no call can take the connection any more, so it is reset.
#[test]
fn ready_connection_is_reset_if_its_listener_was_closed_during_accept() {
    let exec = NotifyRig::start(&[], CLOSING);
    let header = header_for(fresh_client_v4());
    let (start, rest) = header.split_at(20);
    let slow = exec.connect_and_send(start);
    // The backlog is a queue, so the slow connection was accepted before this one, and waits for its header.
    let client = fresh_client_v4();
    let served = exec.connect_and_send(&header_for(client));
    assert_eq!(served.recv_to_end().0, client.to_string().as_bytes());
    exec.process.signal(Signal::USR1);
    exec.process.wait_printed("closed");
    slow.send(rest);
    exec.process.wait_printed("accept: Invalid argument");
    slow.wait_reset();
}

/// In the /proc of another PID namespace the program's process ids are those of other processes, which the supervisor would
/// kill.
#[test]
fn foreign_proc_is_refused() {
    for mode in ["--mode=notify", "--mode=preload"] {
        let through = ["unshare", "--pid", "--fork", BINARY];
        let ended = Peername::run_with_input(
            &Host::new(),
            &through,
            &["exec", mode, "--trust=private", "--", "cat"],
            "",
        );
        assert_fails(&ended, 125, &["--mount-proc"]);
    }
}

/// A thread of the program sets and clears O_NONBLOCK of a listener, also between the supervisor's fcntl(2) and its accept(2).
/// The supervisor does not block there: it goes on answering calls at another listener.
#[test]
fn listener_that_becomes_blocking_meanwhile_holds_up_no_other() {
    let rig = ProgramRig::with_mode(NOTIFY, &[], TOGGLING);
    for _ in 0..100 {
        let header = header_for(fresh_client_v4());
        let conn = Conn::connect_and_send(&rig.lab.balancer, LISTEN_V4, &header);
        conn.recv_text_until(|text| text == "served");
    }
}

/// Two processes of the server ask for the peer of each connection, and exit. The supervisor opens a descriptor of each
/// process, and its limit of descriptors is lower than the number of these processes.
#[test]
fn processes_that_have_exited_take_no_descriptors() {
    let (limited, server) = (["prlimit", "--nofile=128"], compiled_server(Libc::Static));
    let served = ServerRig::start(NOTIFY, &limited, &server, "--accept=block", &[]);
    for _ in 0..100 {
        let client = fresh_client_v4();
        served.assert_report(&served.report_for(&header_for(client)), client);
    }
}

/// Linux capabilities, as bits of a set (capabilities(7)).
const CAP_KILL: u64 = 1 << 5;
const CAP_SYS_PTRACE: u64 = 1 << 19;

const REPEATING: &[&str] = &python(include_str!("faults/repeating.py"));
/// The threads of `repeating.py`, by the names that it prints.
const ACCEPTING: [&str; 4] = [
    "parent",
    "thread of the parent",
    "child",
    "thread of the child",
];
const CLOSING: &[&str] = &python(include_str!("faults/closing.py"));
const TOGGLING: &[&str] = &python(include_str!("faults/toggling.py"));

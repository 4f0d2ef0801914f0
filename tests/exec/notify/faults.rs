//! Faults between program and supervisor, and how each ends.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use peername_sys::process::pidfd::PidFd;
use rustix::process::{Pid, Signal};

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, WAIT_LIMIT, assert_fails, wait_until};
use crate::harness::peername::{BINARY, Peername};
use crate::harness::rig::exec::{NOTIFY, ProgramRig};
use crate::harness::rig::exec_notify::{NotifyRig, kill_pid, recv_addresses};
use crate::harness::rig::proxy::header_for;

/// The kernel would answer ENOSYS to accept(2), and the server would spin. So the program and its descendants are
/// terminated, whatever they do.
#[test]
fn killed_supervisor_ends_the_program() {
    for variant in ["block", "threads", "fork", "level", "edge"] {
        let mut exec = NotifyRig::start_variant(variant, "4", &[]);
        let client = fresh_client_v4();
        assert_eq!(
            exec.report_for(&header_for(client)),
            [client; 2],
            "{variant}"
        );
        kill_pid(exec.supervisor_pid());
        let status = exec.process.wait_exit(WAIT_LIMIT);
        assert!(
            status.is_some_and(|status| !status.success()),
            "{variant}: {status:?}"
        );
        exec.lab.balancer.wait_connection_refused(LISTEN_V4);
    }
}

/// Also before the program has accepted anything, while it waits elsewhere than in accept(2).
#[test]
fn supervisor_killed_at_once_ends_the_program() {
    let mut exec = NotifyRig::start_variant("level", "4", &[]);
    kill_pid(exec.supervisor_pid());
    assert!(exec.process.wait_exit(WAIT_LIMIT).is_some());
}

/// Processes that read bytes of untrusted peers keep only the privileges they use: CAP_SYS_PTRACE and
/// CAP_KILL, the monitor CAP_KILL alone.
#[test]
fn helpers_keep_no_other_privileges() {
    let exec = NotifyRig::start_variant("fork", "4", &[]);
    let client = fresh_client_v4();
    assert_eq!(exec.report_for(&header_for(client)), [client; 2]);
    for (helper, kept) in [
        (exec.supervisor_pid(), 1 << 19 | 1 << 5),
        (exec.monitor_pid(), 1 << 5),
    ] {
        let status = fs::read_to_string(format!("/proc/{}/status", helper.as_raw_nonzero()));
        let status = status.expect("its status");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            u64::from_str_radix(line.expect(name).trim(), 16).expect("a number")
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

/// A program that does not end by itself is killed.
#[test]
fn killed_supervisor_ends_a_program_that_ignores_sigterm() {
    let mut exec = NotifyRig::start_ignoring_sigterm("fork");
    kill_pid(exec.supervisor_pid());
    assert!(exec.process.wait_exit(WAIT_LIMIT).is_some());
}

/// No helper is left that could end the program, so the kernel does: it kills at once all processes of the program that
/// accept, including those that ignore SIGTERM.
#[test]
fn supervisor_and_monitor_killed_at_once_end_the_program() {
    for variant in ["block", "threads", "fork", "level", "edge"] {
        for monitor_first in [false, true] {
            let mut exec = NotifyRig::start_ignoring_sigterm(variant);
            let client = fresh_client_v4();
            assert_eq!(
                exec.report_for(&header_for(client)),
                [client; 2],
                "{variant}"
            );
            let mut helpers = [exec.supervisor_pid(), exec.monitor_pid()];
            helpers.rotate_left(usize::from(monitor_first));
            kill_at_once(helpers);
            assert_killed(&mut exec);
        }
    }
}

/// Before the program has accepted anything, and with a monitor that is not the first.
#[test]
fn supervisor_and_later_monitor_killed_before_any_client_end_the_program() {
    let mut exec = NotifyRig::start_variant("level", "4", &[]);
    let first = exec.monitor_pid();
    kill_pid(first);
    wait_until("another monitor", || exec.monitor_pid() != first);
    kill_at_once([exec.monitor_pid(), exec.supervisor_pid()]);
    assert_killed(&mut exec);
}

/// A process that has never called accept(2) would get ENOSYS from it. It is in the process group that the program leads, as
/// under a service manager.
#[test]
fn supervisor_and_monitor_killed_at_once_end_a_process_that_has_not_accepted() {
    let mut exec = NotifyRig::start_through(&["setsid"], &[], LATE_ACCEPTOR);
    let client = fresh_client_v4();
    let conn = exec.connect_and_send(&header_for(client));
    assert_eq!(conn.recv_to_end().0, client.to_string().as_bytes());
    let late = exec
        .process
        .wait_line("its pid", |line| line.strip_prefix("late ")?.parse().ok());
    let late = PidFd::open(late).expect("it lives");
    kill_at_once([exec.supervisor_pid(), exec.monitor_pid()]);
    assert_killed(&mut exec);
    wait_until("the end of the other", || late.has_exited());
}

/// A thread is told apart from a later process with the same id, whether its own process has exited or lives on.
#[test]
fn supervisor_and_monitor_killed_at_once_end_a_process_with_the_id_of_a_thread() {
    for first in ["process", "thread"] {
        let mut exec = NotifyRig::start(&[], &[REUSED_THREAD_ID, &[first]].concat());
        for _ in ["first", "second"] {
            let client = fresh_client_v4();
            let conn = exec.connect_and_send(&header_for(client));
            assert_eq!(
                conn.recv_to_end().0,
                client.to_string().as_bytes(),
                "{first}"
            );
        }
        exec.process
            .wait_line("the id", |line| line.strip_prefix("reused ").map(drop));
        kill_at_once([exec.supervisor_pid(), exec.monitor_pid()]);
        assert_killed(&mut exec);
    }
}

/// The monitor gives the program two seconds, in which it can be killed, too.
#[test]
fn monitor_killed_while_it_ends_the_program() {
    let mut exec = NotifyRig::start_ignoring_sigterm("fork");
    let client = fresh_client_v4();
    assert_eq!(exec.report_for(&header_for(client)), [client; 2]);
    let monitor = exec.monitor_pid();
    kill_pid(exec.supervisor_pid());
    assert!(exec.process.wait_exit(Duration::from_millis(300)).is_none());
    kill_pid(monitor);
    assert_killed(&mut exec);
}

/// Suspends both first, so that neither can react to the other's end.
pub(super) fn kill_at_once(helpers: [Pid; 2]) {
    for helper in helpers {
        rustix::process::kill_process(helper, Signal::STOP).expect("kill");
    }
    helpers.into_iter().for_each(kill_pid);
}

/// Waits until SIGKILL has ended the program and no process of it listens; asserts that none of its calls
/// failed before.
#[track_caller]
fn assert_killed(exec: &mut NotifyRig) {
    let status = exec.process.wait_exit(WAIT_LIMIT).expect("its end");
    assert_eq!(status.signal(), Some(9), "{status:?}");
    exec.lab.balancer.wait_connection_refused(LISTEN_V4);
    let log = exec.process.log();
    assert!(!log.contains("not implemented"), "{log}");
}

/// Connections that wait for their header or for accept(2) are closed, not left hanging.
#[test]
fn killed_supervisor_closes_waiting_connections() {
    let exec = NotifyRig::start_variant("level", "4", &[]);
    let waiting = exec.connect_and_send(b"PROXY TCP4 ");
    waiting.assert_stays_open(Duration::from_millis(100));
    kill_pid(exec.supervisor_pid());
    waiting.recv_to_end();
}

#[test]
fn killed_monitor_is_replaced() {
    let mut exec = NotifyRig::start_variant("block", "4", &[]);
    let first = exec.monitor_pid();
    kill_pid(first);
    wait_until("another monitor", || exec.monitor_pid() != first);
    let client = fresh_client_v4();
    assert_eq!(exec.report_for(&header_for(client)), [client; 2]);
    kill_pid(exec.supervisor_pid());
    assert!(exec.process.wait_exit(WAIT_LIMIT).is_some());
}

/// A service manager that stops a whole group means the program.
#[test]
fn supervisor_ignores_sigterm() {
    let exec = NotifyRig::start_variant("block", "4", &[]);
    for helper in [exec.supervisor_pid(), exec.monitor_pid()] {
        rustix::process::kill_process(helper, Signal::TERM).unwrap();
    }
    let client = fresh_client_v4();
    assert_eq!(exec.report_for(&header_for(client)), [client; 2]);
}

#[test]
fn helpers_end_with_the_program() {
    let mut exec = NotifyRig::start_variant("exit", "4", &[]);
    let (supervisor, monitor) = (exec.supervisor_pid(), exec.monitor_pid());
    exec.report_for(&header_for(fresh_client_v4()));
    let status = exec.process.wait_exit(WAIT_LIMIT).expect("its end");
    assert_eq!(status.code(), Some(7));
    for helper in [supervisor, monitor] {
        wait_until("its end", || {
            let path = format!("/proc/{}/stat", helper.as_raw_nonzero());
            // Ended, or a zombie that waits for whichever process reaps orphans here.
            let stat = std::fs::read_to_string(path).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
    }
}

/// The helpers end also when the program is killed in the middle of a call.
#[test]
fn program_killed_in_accept_leaves_nothing() {
    let mut exec = NotifyRig::start_variant("threads", "4", &[]);
    let supervisor = exec.supervisor_pid();
    exec.process.signal(Signal::KILL);
    assert!(exec.process.wait_exit(WAIT_LIMIT).is_some());
    wait_until("the supervisor's end", || {
        let path = format!("/proc/{}/stat", supervisor.as_raw_nonzero());
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
}

/// The connection is not lost: the program gets it when it has a descriptor.
#[test]
fn exhausted_descriptors_lose_no_connection() {
    let exec = NotifyRig::start_variant("full", "4", &[]);
    let client = fresh_client_v4();
    let conn = exec.connect_and_send(&header_for(client));
    exec.process.wait_printed("EMFILE");
    assert_eq!(recv_addresses(&conn), [client; 2]);
}

#[test]
fn signals_interrupt_accept_and_lose_nothing() {
    let exec = NotifyRig::start_variant("signal", "4", &[]);
    for round in 0..20 {
        for _ in 0..round {
            exec.process.signal(Signal::USR1);
        }
        let client = fresh_client_v4();
        assert_eq!(exec.report_for(&header_for(client)), [client; 2]);
        exec.process.signal(Signal::USR1);
    }
    exec.process.wait_printed("EINTR");
}

/// The supervisor holds a listener only while a call waits on it.
#[test]
fn closed_listener_frees_its_port_at_once() {
    let exec = NotifyRig::start_variant("rebind", "4", &[]);
    wait_until("its accept to wait", || {
        exec.process.signal(Signal::USR1);
        std::thread::sleep(Duration::from_millis(50));
        exec.process.log().contains("bound again")
    });
    let client = fresh_client_v4();
    assert_eq!(exec.report_for(&header_for(client)), [client; 2]);
}

#[test]
fn shut_down_listener_ends_the_wait() {
    let mut exec = NotifyRig::start_variant("shutdown", "4", &[]);
    wait_until("its accept to wait", || {
        exec.process.signal(Signal::USR1);
        exec.process.log().contains("EINVAL")
    });
    assert!(exec.process.wait_exit(WAIT_LIMIT).is_some());
}

/// In the /proc of another PID namespace the program's ids are those of other processes, which the supervisor would kill.
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

/// A thread changes O_NONBLOCK between the supervisor's look at it and accept(2). The others are served all the same.
#[test]
fn listener_that_is_made_blocking_meanwhile_holds_up_no_other() {
    let rig = ProgramRig::with_mode(NOTIFY, &[], TOGGLING);
    for _ in 0..100 {
        let header = header_for(fresh_client_v4());
        let conn = Conn::connect_and_send(&rig.lab.balancer, LISTEN_V4, &header);
        conn.recv_text_until(|text| text == "served");
    }
}

/// A parent that serves, and a child that would do so after a signal.
const LATE_ACCEPTOR: &[&str] = &[
    "/usr/bin/python3",
    "-uc",
    include_str!("faults/late_acceptor.py"),
];
const REUSED_THREAD_ID: &[&str] = &[
    "/usr/bin/python3",
    "-uc",
    include_str!("faults/reused_thread_id.py"),
];
const TOGGLING: &[&str] = &[
    "/usr/bin/python3",
    "-uc",
    include_str!("faults/toggling.py"),
];

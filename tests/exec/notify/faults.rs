//! What goes wrong between program and supervisor, and how it ends.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::harness::addr::{LISTEN_V4, someone_v4};
use crate::harness::lab::{PATIENCE, wait_for};
use crate::harness::rig::exec_notify::{Exec, kill, told};
use crate::harness::rig::proxy::header_of;

/// The kernel would answer ENOSYS to accept(2), at which a server spins. So the program ends, whatever it
/// was doing, with all that it has started.
#[test]
fn a_killed_supervisor_ends_the_program() {
    for variant in ["block", "threads", "fork", "level", "edge"] {
        let mut exec = Exec::variant(variant, "4", &[]);
        let client = someone_v4();
        assert_eq!(exec.ask(&header_of(client)), [client; 2], "{variant}");
        kill(exec.supervisor());
        let status = exec.process.ended_within(PATIENCE);
        assert!(
            status.is_some_and(|status| !status.success()),
            "{variant}: {status:?}"
        );
        exec.lab.balancer.finds_nobody_at(LISTEN_V4);
    }
}

/// Also before it has accepted anything, while it waits for that elsewhere than in accept(2).
#[test]
fn a_supervisor_killed_at_once_ends_the_program() {
    let mut exec = Exec::variant("level", "4", &[]);
    kill(exec.supervisor());
    assert!(exec.process.ended_within(PATIENCE).is_some());
}

/// What reads strangers' octets has no more of root's privileges than it uses: CAP_SYS_PTRACE and CAP_KILL, the guardian
/// CAP_KILL alone.
#[test]
fn the_helpers_keep_no_privileges() {
    let exec = Exec::variant("fork", "4", &[]);
    let client = someone_v4();
    assert_eq!(exec.ask(&header_of(client)), [client; 2]);
    for (helper, kept) in [
        (exec.supervisor(), 1 << 19 | 1 << 5),
        (exec.guardian(), 1 << 5),
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

/// One that does not end by itself is killed.
#[test]
fn a_program_that_ignores_sigterm_ends_too() {
    let mut exec = Exec::deaf("fork");
    kill(exec.supervisor());
    assert!(exec.process.ended_within(PATIENCE).is_some());
}

/// Nobody is left who could end the program, so the kernel does: all of its processes that accept, also those
/// that ignore SIGTERM, at once.
#[test]
fn supervisor_and_guardian_killed_at_once_end_the_program() {
    for variant in ["block", "threads", "fork", "level", "edge"] {
        for guardian_first in [false, true] {
            let mut exec = Exec::deaf(variant);
            let client = someone_v4();
            assert_eq!(exec.ask(&header_of(client)), [client; 2], "{variant}");
            let mut helpers = [exec.supervisor(), exec.guardian()];
            helpers.rotate_left(usize::from(guardian_first));
            kill_at_once(helpers);
            killed(&mut exec);
        }
    }
}

/// Before it has accepted anything, and with a guardian that is not the first.
#[test]
fn supervisor_and_a_later_guardian_killed_before_anybody_has_come() {
    let mut exec = Exec::variant("level", "4", &[]);
    let first = exec.guardian();
    kill(first);
    wait_for("another guardian", || {
        (exec.guardian() != first).then_some(())
    });
    kill_at_once([exec.guardian(), exec.supervisor()]);
    killed(&mut exec);
}

/// It gives the program two seconds, in which it can be killed too.
#[test]
fn a_guardian_killed_while_it_ends_the_program() {
    let mut exec = Exec::deaf("fork");
    let client = someone_v4();
    assert_eq!(exec.ask(&header_of(client)), [client; 2]);
    let guardian = exec.guardian();
    kill(exec.supervisor());
    assert!(
        exec.process
            .ended_within(Duration::from_millis(300))
            .is_none()
    );
    kill(guardian);
    killed(&mut exec);
}

/// Stopped, neither can do anything about the end of the other.
pub(super) fn kill_at_once(helpers: [Pid; 2]) {
    for helper in helpers {
        rustix::process::kill_process(helper, Signal::STOP).expect("kill");
    }
    helpers.into_iter().for_each(kill);
}

/// SIGKILL has ended the program, and nobody of it is left who listens; none of its calls has failed before.
#[track_caller]
fn killed(exec: &mut Exec) {
    let status = exec.process.ended_within(PATIENCE).expect("its end");
    assert_eq!(status.signal(), Some(9), "{status:?}");
    exec.lab.balancer.finds_nobody_at(LISTEN_V4);
    let log = exec.process.log();
    assert!(!log.contains("not implemented"), "{log}");
}

/// Connections that are parked or ready when it happens are closed, not left hanging.
#[test]
fn a_killed_supervisor_lets_go_of_those_who_wait() {
    let exec = Exec::variant("level", "4", &[]);
    let waiting = exec.open(b"PROXY TCP4 ");
    waiting.stays_open(Duration::from_millis(100));
    kill(exec.supervisor());
    waiting.drain();
}

#[test]
fn a_killed_guardian_is_replaced() {
    let mut exec = Exec::variant("block", "4", &[]);
    let first = exec.guardian();
    kill(first);
    wait_for("another guardian", || {
        (exec.guardian() != first).then_some(())
    });
    let client = someone_v4();
    assert_eq!(exec.ask(&header_of(client)), [client; 2]);
    kill(exec.supervisor());
    assert!(exec.process.ended_within(PATIENCE).is_some());
}

/// A service manager that stops a whole group means the program.
#[test]
fn the_supervisor_does_not_end_by_sigterm() {
    let exec = Exec::variant("block", "4", &[]);
    for helper in [exec.supervisor(), exec.guardian()] {
        rustix::process::kill_process(helper, Signal::TERM).unwrap();
    }
    let client = someone_v4();
    assert_eq!(exec.ask(&header_of(client)), [client; 2]);
}

#[test]
fn both_end_with_the_program() {
    let mut exec = Exec::variant("exit", "4", &[]);
    let (supervisor, guardian) = (exec.supervisor(), exec.guardian());
    exec.ask(&header_of(someone_v4()));
    let status = exec.process.ended_within(PATIENCE).expect("its end");
    assert_eq!(status.code(), Some(7));
    for helper in [supervisor, guardian] {
        wait_for("its end", || {
            let path = format!("/proc/{}/stat", helper.as_raw_nonzero());
            // Gone, or waiting for whoever reaps orphans here.
            let stat = std::fs::read_to_string(path).unwrap_or_default();
            (stat.is_empty() || stat.contains(") Z ")).then_some(())
        });
    }
}

/// It goes with the program, too, when that is killed in the middle of a call.
#[test]
fn a_program_killed_while_it_waits_leaves_nothing() {
    let mut exec = Exec::variant("threads", "4", &[]);
    let supervisor = exec.supervisor();
    exec.process.signal(Signal::KILL);
    assert!(exec.process.ended_within(PATIENCE).is_some());
    wait_for("the supervisor's end", || {
        let path = format!("/proc/{}/stat", supervisor.as_raw_nonzero());
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
}

/// The connection is not lost: the program gets it when it can.
#[test]
fn a_program_without_descriptors_gets_its_connection_later() {
    let exec = Exec::variant("full", "4", &[]);
    let client = someone_v4();
    let conn = exec.open(&header_of(client));
    exec.process
        .line("EMFILE", |line| (line == "EMFILE").then_some(()));
    assert_eq!(told(&conn), [client; 2]);
}

#[test]
fn signals_interrupt_and_nothing_is_lost() {
    let exec = Exec::variant("signal", "4", &[]);
    for round in 0..20 {
        for _ in 0..round {
            exec.process.signal(Signal::USR1);
        }
        let client = someone_v4();
        assert_eq!(exec.ask(&header_of(client)), [client; 2]);
        exec.process.signal(Signal::USR1);
    }
    exec.process
        .line("EINTR", |line| (line == "EINTR").then_some(()));
}

/// The supervisor holds a listener only while somebody waits on it.
#[test]
fn a_closed_listener_is_free_at_once() {
    let exec = Exec::variant("rebind", "4", &[]);
    wait_for("its accept to wait", || {
        exec.process.signal(Signal::USR1);
        std::thread::sleep(Duration::from_millis(50));
        exec.process.log().contains("bound again").then_some(())
    });
    let client = someone_v4();
    assert_eq!(exec.ask(&header_of(client)), [client; 2]);
}

#[test]
fn a_listener_that_is_shut_down_ends_the_wait() {
    let mut exec = Exec::variant("shutdown", "4", &[]);
    wait_for("its accept to wait", || {
        exec.process.signal(Signal::USR1);
        exec.process.log().contains("EINVAL").then_some(())
    });
    assert!(exec.process.ended_within(PATIENCE).is_some());
}

//! How long a process that was replaced keeps its open connections.

use std::fs;
use std::time::{Duration, Instant};

use peername_sys::process::pidfd::descendants;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::addr::{LISTEN_V4, TARGET_V4};
use crate::harness::backend::Backend;
use crate::harness::conn::End;
use crate::harness::lab::{Lab, wait_until};
use crate::harness::peername::PROXY_ARGS;
use crate::harness::rig::proxy::connect_fresh_client;
use crate::harness::rig::upgrade::{Binary, UpgradeRig};

/// `--drain` limits how long a stop takes. Nothing waits for the end of a replaced process, so it keeps its connections for
/// longer. Once it is stopped as well, --drain applies to it, too.
#[test]
fn replaced_process_keeps_connections_for_longer_than_a_stop() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let args = [PROXY_ARGS, &["--drain=300ms"]].concat();
    let mut rig = UpgradeRig::start(&lab.server, &args);
    let old = rig.serving;
    let pid = format!("\"pid\":{},", rig.serving_inside());
    let (down, up) = connect_fresh_client(&lab, LISTEN_V4, &backend);
    rig.upgrade(&lab.server).expect("it upgrades");
    rig.processes
        .wait_logged_parts(&["replaced; waiting", "\"connections\":1", &pid]);
    down.assert_stays_open(Duration::from_millis(1200));
    down.assert_reaches(&up, b"ping");

    let begin = Instant::now();
    let pid = i32::try_from(old).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process id"), Signal::TERM).expect("kill");
    assert_eq!(down.recv_to_end().1, End::Reset);
    assert!(
        begin.elapsed() >= Duration::from_millis(290),
        "{:?}",
        begin.elapsed()
    );
    rig.wait_drained();
    // The drain went on for a shorter time after the signal.
    assert_eq!(rig.processes.count_logged("drain ended: "), 1);
    let (_down, up) = connect_fresh_client(&lab, LISTEN_V4, &backend);
    drop(up);
}

#[test]
fn upgrade_drain_limits_a_replaced_process() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let args = [PROXY_ARGS, &["--upgrade-drain=500ms", "--drain=60s"]].concat();
    let mut rig = UpgradeRig::start(&lab.server, &args);
    let (down, _up) = connect_fresh_client(&lab, LISTEN_V4, &backend);
    rig.upgrade(&lab.server).expect("it upgrades");
    assert_eq!(down.recv_to_end().1, End::Reset);
    rig.wait_drained();
}

/// The new process has the listening sockets, and would hold them for the rest of its start. It ends, also while the old one
/// drains.
#[test]
fn stop_during_an_upgrade_ends_the_new_process() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let args = [PROXY_ARGS, &["--drain=600s"]].concat();
    for is_draining in [false, true] {
        let rig = UpgradeRig::start(&lab.server, &args);
        let open = is_draining.then(|| connect_fresh_client(&lab, LISTEN_V4, &backend));
        rig.install(&lab.server, Binary::Hangs);
        rig.signal(Signal::USR2);
        wait_until("the new process", || is_hanging(&rig));
        rig.signal(Signal::TERM);
        wait_until("its end", || !is_hanging(&rig));
        lab.balancer.wait_connection_refused(LISTEN_V4);
        if is_draining {
            assert_eq!(rig.servers(), [rig.serving]);
        }
        drop(open);
        wait_until("the end of the old process", || rig.servers().is_empty());
    }
}

/// Whether a new process runs that never becomes ready.
fn is_hanging(rig: &UpgradeRig) -> bool {
    let children = descendants(rig.processes.pid());
    children.into_iter().any(|pid| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline"));
        command.is_ok_and(|arguments| arguments == "sleep\x001000\0")
    })
}

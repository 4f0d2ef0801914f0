//! How long a process that was replaced keeps its open connections.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::addr::{LISTEN_V4, TARGET_V4};
use crate::harness::backend::Backend;
use crate::harness::conn::End;
use crate::harness::lab::Lab;
use crate::harness::peername::PROXY_ARGS;
use crate::harness::rig::proxy::connect_fresh_client;
use crate::harness::rig::upgrade::UpgradeRig;

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

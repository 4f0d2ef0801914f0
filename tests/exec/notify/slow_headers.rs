//! Slow headers, under the supervisor: no other client is delayed.

use std::time::Duration;

use crate::harness::addr::fresh_client_v4;
use crate::harness::conn::End;
use crate::harness::rig::exec_notify::{NotifyRig, recv_addresses};
use crate::harness::rig::proxy::header_for;

#[test]
fn slow_header_delays_no_other_client() {
    for variant in [
        "block", "threads", "fork", "poll", "select", "level", "edge", "oneshot",
    ] {
        let exec = NotifyRig::start_variant(variant, "4", &[]);
        let (slow, quick) = (fresh_client_v4(), fresh_client_v4());
        let header = header_for(slow);
        let (first, rest) = header.split_at(header.len() / 2);
        let waiting = exec.connect_and_send(first);
        assert_eq!(exec.report_for(&header_for(quick)), [quick; 2], "{variant}");
        waiting.assert_stays_open(Duration::from_millis(50));
        waiting.send(rest);
        assert_eq!(recv_addresses(&waiting), [slow; 2], "{variant}");
    }
}

#[test]
fn header_may_come_byte_by_byte() {
    let exec = NotifyRig::start_variant("edge", "4", &[]);
    let client = fresh_client_v4();
    let conn = exec.connect_and_send(b"");
    for byte in header_for(client) {
        conn.send(&[byte]);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(recv_addresses(&conn), [client; 2]);
}

#[test]
fn incomplete_header_times_out() {
    for variant in ["block", "level"] {
        let exec = NotifyRig::start_variant(variant, "4", &["--header-timeout=300ms"]);
        for start in [&b""[..], b"PROXY TCP4 "] {
            let (end, after) = exec.connect_and_send(start).wait_closed();
            assert_eq!(end, End::Reset, "{variant}");
            // The kernel shows a silent connection only after a second (deferred accept).
            assert!(after >= Duration::from_millis(250), "{variant}: {after:?}");
        }
    }
}

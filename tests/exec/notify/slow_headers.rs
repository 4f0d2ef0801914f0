//! Who says nothing keeps nobody waiting.

use std::time::Duration;

use crate::harness::addr::someone_v4;
use crate::harness::conn::End;
use crate::harness::rig::exec_notify::{Exec, told};
use crate::harness::rig::proxy::header_of;

#[test]
fn a_header_in_pieces_keeps_nobody_waiting() {
    for variant in [
        "block", "threads", "fork", "poll", "select", "level", "edge", "oneshot",
    ] {
        let exec = Exec::variant(variant, "4", &[]);
        let (slow, quick) = (someone_v4(), someone_v4());
        let header = header_of(slow);
        let (first, rest) = header.split_at(header.len() / 2);
        let waiting = exec.open(first);
        assert_eq!(exec.ask(&header_of(quick)), [quick; 2], "{variant}");
        waiting.stays_open(Duration::from_millis(50));
        waiting.send(rest);
        assert_eq!(told(&waiting), [slow; 2], "{variant}");
    }
}

#[test]
fn a_header_octet_by_octet() {
    let exec = Exec::variant("edge", "4", &[]);
    let client = someone_v4();
    let conn = exec.open(b"");
    for octet in header_of(client) {
        conn.send(&[octet]);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(told(&conn), [client; 2]);
}

#[test]
fn a_header_that_never_completes_ends_in_time() {
    for variant in ["block", "level"] {
        let exec = Exec::variant(variant, "4", &["--header-timeout=300ms"]);
        for start in [&b""[..], b"PROXY TCP4 "] {
            let (end, after) = exec.open(start).closed();
            assert_eq!(end, End::Reset, "{variant}");
            // The kernel shows a connection that says nothing only after a second.
            assert!(after >= Duration::from_millis(250), "{variant}: {after:?}");
        }
    }
}

//! Origins that could not be reached. The jail prints a line for each at its exit.

use super::denials::own_lines;
use crate::harness::addr::v4;
use crate::harness::lab::{Process, assert_contains};
use crate::harness::peername::User;
use crate::harness::rig::jail::JailRig;

/// Programs often show only a status, so the jail reports the cause.
#[test]
fn origin_that_is_not_reached_has_a_line_with_the_cause() {
    let rig = JailRig::new();
    let learned = rig.scratch().path_text("learned");
    let script = "for i in 1 2; do curl -s -o /dev/null https://self-signed.test/; done; curl -s http://a.test:8000/; true";
    let output = rig.run(User::Nobody, &["--learn", &learned], script);
    let lines = own_lines(&output.stderr);
    // The first one is the warning of --learn.
    let [_, refused, untrusted] = &lines[..] else {
        panic!("{output:?}");
    };
    assert_contains(
        refused,
        &[
            "peername: failed: a.test:8000, once: ",
            "nothing listens there",
        ],
    );
    assert_contains(
        untrusted,
        &[
            "peername: failed: self-signed.test:443, 2 times: ",
            "certificate",
            "--extra-ca FILE",
        ],
    );
}

/// The server of `late_server.py` listens at port 8000 only after the first request to that port. The second one is served.
#[test]
fn origin_that_is_reached_later_has_no_line() {
    let rig = JailRig::new();
    let server = Process::start(&rig.stage.lab.server, "/usr/bin/python3", &["-c", SERVER]);
    let _server = server.wait_listening(&[v4([10, 81, 0, 1], 8080)]);
    let script = "for port in 8000 8080 8000; do \
                  curl -s -o /dev/null -w '%{http_code} ' http://a.test:$port/; done; true";
    let options = ["--allow=a.test:8000", "--allow=a.test:8080"];
    let output = rig.run(User::Nobody, &options, script);
    assert_eq!(output.stdout, b"502 204 204 ", "{output:?}");
    assert_eq!(own_lines(&output.stderr), [""; 0]);
}

const SERVER: &str = include_str!("failures/late_server.py");

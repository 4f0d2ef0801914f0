//! The file of `--log`: no request without a line.

use crate::harness::lab::assert_contains;
use std::fs;

use serde_json::Value;

use crate::harness::rig::jail::{JailRig, User};

fn lines(log: &str) -> Vec<Value> {
    log.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// A line for each request before it is sent, with the id of the one at its end.
#[test]
fn request_is_recorded_before_it_is_sent() {
    let rig = JailRig::new();
    let log = rig.scratch().path_text("audit.log");
    let script = "curl -sS -o /dev/null 'https://a.test/one?secret'; curl -sS -o /dev/null http://192.0.2.1/two";
    rig.succeeds(User::Root, &["--log", &log], script);
    let lines = lines(&fs::read_to_string(&log).expect("the log"));
    let with = |message: &str| -> Vec<&Value> {
        lines
            .iter()
            .filter(|line| line["message"] == message)
            .collect()
    };
    let (admitted, ended) = (with("request admitted"), with("request"));
    assert_eq!((admitted.len(), ended.len()), (2, 2), "{lines:?}");
    assert_eq!(admitted[0]["id"], ended[0]["id"]);
    assert_eq!(
        [
            &admitted[0]["host"],
            &admitted[0]["path"],
            &admitted[0]["method"]
        ],
        ["a.test", "/one", "GET"]
    );
}

/// On a full disk nothing is sent, and standard error says why; requests go on when there is room.
#[test]
fn request_is_denied_where_its_line_can_not_be_written() {
    let rig = JailRig::new();
    let small = rig.scratch().path_text("small");
    fs::create_dir(&small).expect("a directory");
    let jail = rig.scratch().path_text("peername");
    let root = rig.scratch().path_text("root.pem");
    // The jail itself does not see the file system, and so asks a process outside for room, by a file.
    let program = format!(
        "curl -sS https://a.test/echo; touch {small}.go; until [ -e {small}.done ]; do sleep 0.05; done; \
         curl -sS https://a.test/echo"
    );
    let script = format!(
        "mount -t tmpfs -o size=64k,mode=777 small {small} && head -c 70000 /dev/zero >{small}/fill; \
         touch {small}/log; ( until [ -e {small}.go ]; do sleep 0.05; done; rm {small}/fill; touch {small}.done ) & \
         {jail} jail -q --allow=any --extra-ca {root} --allow-destination=10.81.0.0/24 --log {small}/log -- sh -c '{program}'; \
         cat {small}/log"
    );
    let output = rig.run_outside(User::Root, &script);
    let (printed, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        printed.contains("the audit log is not writable"),
        "{output:?}"
    );
    assert_eq!(printed.matches("GET a.test ").count(), 1, "{output:?}");
    assert_contains(
        &errors,
        &["--log can't be written: No space left on device"],
    );
    assert_contains(&errors, &["--log is written again"]);
    let sent = lines(&printed)
        .into_iter()
        .filter(|line| line["message"] == "request admitted");
    assert_eq!(sent.count(), 1, "{output:?}");
}

//! The file of `--log` has a line before each request is sent, and one at its end.

use std::fs;

use serde_json::Value;

use crate::harness::lab::{
    assert_contains, assert_fails, json_lines, stderr_text, stdout_text, wait_for,
};
use crate::harness::peername::User;
use crate::harness::rig::jail::JailRig;

/// A request has a line before it is sent, and one with the same id at its end.
#[test]
fn admission_and_end_of_a_request_have_one_id() {
    let rig = JailRig::new();
    let log = rig.scratch().path_text("audit.log");
    let script = "curl -sS -o /dev/null 'https://a.test/one?secret'; curl -sS -o /dev/null http://192.0.2.1/two";
    rig.succeeds(User::Root, &["--log", &log], script);
    let lines = json_lines(&fs::read_to_string(&log).expect("the log"));
    let lines_with = |message: &str| -> Vec<&Value> {
        lines
            .iter()
            .filter(|line| line["message"] == message)
            .collect()
    };
    let (admitted, ended) = (lines_with("request admitted"), lines_with("request"));
    assert_eq!((admitted.len(), ended.len()), (2, 2), "{lines:?}");
    assert!(!admitted[0]["id"].is_null(), "{lines:?}");
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

#[test]
fn audit_lines_go_to_the_file() {
    let rig = JailRig::new();
    let log = rig.scratch().path_text("audit.log");
    let script =
        "curl -sS -o /dev/null https://a.test/one; curl -sS -o /dev/null http://192.0.2.1/two";
    let output = rig.run(User::Root, &["-q", "--log", &log], script);
    assert!(output.stderr.is_empty(), "{output:?}");
    let lines: Vec<Value> = wait_for("two audit lines", || {
        let mut lines = json_lines(&rig.scratch().read("audit.log"));
        lines.retain(|line| line["message"] == "request");
        (lines.len() == 2).then_some(lines)
    });
    let field = |name: &str| [0, 1].map(|at| lines[at][name].as_str().unwrap_or("").to_owned());
    assert_eq!(field("path"), ["/one", "/two"]);
    assert_eq!(field("host"), ["a.test", "192.0.2.1"]);
    assert_eq!(field("code"), ["", "destination_not_public"]);
    assert!(
        field("client")
            .iter()
            .all(|client| client.starts_with("127.0.0.1:"))
    );
}

/// The program exits while a process that it has left behind waits for a response. That request is logged, too.
#[test]
fn request_of_a_process_left_behind_is_logged() {
    let rig = JailRig::new();
    let [log, body] = ["audit.log", "received"].map(|name| rig.scratch().path_text(name));
    let program = format!(
        "curl -sSN -o {body} --limit-rate 1k http://a.test/slow >/dev/null 2>&1 &
         until [ -s {body} ]; do sleep 0.05; done"
    );
    rig.succeeds(User::Root, &["-q", "--log", &log], &program);
    super::wait_interceptor_exit(&rig);
    let text = rig.scratch().read("audit.log");
    let lines = json_lines(&text);
    let messages: Vec<_> = lines
        .iter()
        .filter(|line| line["path"] == "/slow")
        .map(|line| &line["message"])
        .collect();
    assert_eq!(messages, ["request admitted", "request"], "{text}");
}

/// The interceptor is suspended while the program tries ports, as on a busy host. Those of loopback at which the host has no
/// server keep nothing waiting. Each refused connection to another host is logged and counted.
#[test]
fn refused_connections_are_logged_although_the_interceptor_falls_behind() {
    let rig = JailRig::new();
    let jail = rig.scratch().path_text("peername");
    let pattern = rig.interceptor_pattern();
    rig.scratch().write("refused.py", REFUSED);
    // The interceptor has worker threads, the other processes of the jail have one thread.
    let script = format!(
        "cd {dir}; {jail} jail --fail-on-deny --allow=a.test --log=log -- /usr/bin/python3 refused.py 2>errors &
         until [ -e ready ]; do sleep 0.05; done
         for pid in $(pgrep -f '{pattern}'); do
             [ $(ls /proc/$pid/task | wc -l) -gt 1 ] && kill -STOP $pid && stopped=\"$stopped $pid\"
         done
         touch go; until [ -e loopback ]; do sleep 0.05; done; sleep 1
         kill -CONT $stopped; wait $!; echo $?",
        dir = rig.scratch().path_text(""),
    );
    let output = rig.run_outside(User::Root, &script);
    assert_eq!(stdout_text(&output), "122\n", "{output:?}");
    let errors = rig.scratch().read("errors");
    assert_contains(
        &errors,
        &["peername: denied: 203.0.113.5:9999, 2000 times: "],
    );
    super::wait_interceptor_exit(&rig);
    let log = rig.scratch().read("log");
    assert_eq!(log.matches("port_not_allowed").count(), 2000, "{errors}");
}

/// The mediator is suspended when the program exits, so that it may have refused connections that it has not reported.
#[test]
fn program_fails_where_denials_may_be_unknown() {
    let rig = JailRig::new();
    let jail = rig.scratch().path_text("peername");
    let pattern = rig.interceptor_pattern();
    let program = "touch ready; until [ -e go ]; do sleep 0.05; done";
    // The interceptor has the same name, and worker threads.
    let script = format!(
        "cd {dir}; {jail} jail --fail-on-deny --allow=a.test -- sh -c '{program}' 2>errors &
         until [ -e ready ]; do sleep 0.05; done
         for pid in $(pgrep -f '{pattern}'); do
             [ \"$(cat /proc/$pid/comm) $(ls /proc/$pid/task | wc -l)\" = 'peername-jail 1' ] && kill -STOP $pid && stopped=\"$stopped $pid\"
         done
         touch go; wait $!; echo $?; kill -CONT $stopped",
        dir = rig.scratch().path_text(""),
    );
    let output = rig.run_outside(User::Root, &script);
    assert_eq!(stdout_text(&output), "122\n", "{output:?}");
    let errors = rig.scratch().read("errors");
    let line = "peername: denied: maybe further connections, which are not known: the mediator has not exited in 5s";
    assert_contains(&errors, &[line]);
    super::wait_interceptor_exit(&rig);
}

/// While the disk is full, requests are denied, and standard error says why. Requests go on when there is space again, and
/// the record that was written in part is followed by a line break.
#[test]
fn request_is_denied_where_its_line_can_not_be_written() {
    let rig = JailRig::new();
    let small = rig.scratch().path_text("small");
    fs::create_dir(&small).expect("a directory");
    let jail = rig.scratch().path_text("peername");
    let root = rig.scratch().path_text("root.pem");
    // The program does not see the small file system. It creates a file, and then a process outside frees space there.
    let program = format!(
        "curl -sS https://a.test/echo; touch {small}.go; until [ -e {small}.done ]; do sleep 0.05; done; \
         curl -sS http://b.test/; curl -sS https://a.test/echo"
    );
    let script = format!(
        "mount -t tmpfs -o size=64k,mode=777 small {small} && printf '%03999d\\n' 0 >{small}/log; \
         head -c 70000 /dev/zero >{small}/fill; ( until [ -e {small}.go ]; do sleep 0.05; done; rm {small}/fill; touch {small}.done ) & \
         {jail} jail -q --deny=b.test --allow=any --extra-ca {root} --allow-destination=10.81.0.0/24 --log {small}/log -- sh -c '{program}'; \
         cat {small}/log"
    );
    let output = rig.run_outside(User::Root, &script);
    let (printed, errors) = (stdout_text(&output), stderr_text(&output));
    assert!(
        printed.contains("\"code\":\"audit_failed\",\"detail\":\"the audit log is not writable\""),
        "{output:?}"
    );
    assert_eq!(printed.matches("GET a.test ").count(), 1, "{output:?}");
    assert_contains(
        &errors,
        &["--log can't be written: No space left on device"],
    );
    assert_contains(&errors, &["--log is written again"]);
    let lines = json_lines(&printed);
    let admitted = lines
        .iter()
        .filter(|line| line["message"] == "request admitted");
    assert_eq!(admitted.count(), 1, "{output:?}");
    for code in ["audit_failed", "denied"] {
        let mut ended = lines.iter().filter(|line| line["message"] == "request");
        assert!(ended.any(|line| line["code"] == code), "{code}: {output:?}");
    }
}

#[test]
fn log_with_another_name_is_refused() {
    let rig = JailRig::new();
    let log = rig.scratch().write("audit.log", "");
    fs::hard_link(&log, rig.scratch().path("link")).expect("link(2)");
    assert_fails(
        &rig.run(User::Root, &["--log", &log], "true"),
        2,
        &["hard link"],
    );
}

const REFUSED: &str = include_str!("audit/refused.py");

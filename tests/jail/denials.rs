//! How a jail reports denials: lines at its exit, an exit code, the difference to a list, and audit lines in a file of their
//! own.

mod hidden;

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use peername_sys::process::pidfd::{self, PidFd};
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::addr::v4;
use crate::harness::lab::{Process, assert_contains, stderr_text, stdout_text, wait_until};
use crate::harness::peername::{USERS, User};
use crate::harness::rig::jail::JailRig;

/// The lines of standard error that the jail wrote, and not the program.
pub(super) fn own_lines(stderr: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(stderr)
        .lines()
        .filter(|line| line.starts_with("peername: "))
        .map(str::to_owned)
        .collect()
}

fn sorted_own_lines(stderr: &[u8]) -> Vec<String> {
    let mut lines = own_lines(stderr);
    lines.sort();
    lines
}

#[test]
fn each_denied_destination_has_a_line_with_what_would_allow_it() {
    let rig = JailRig::without_destinations();
    let script = "for i in 1 2 3; do curl -s -o /dev/null https://b.test/$i; done; curl -s http://a.test/x -o /dev/null
        curl -s4 http://b.test:9999/; curl -s4 http://h1.test:9999/; curl -s http://169.254.169.254/ -o /dev/null; curl -s http://metadata.test/ -o /dev/null
        curl -s http://c.test/ -o /dev/null; curl -s http://private.test/ -o /dev/null; curl -s http://127.0.0.1:9998/; true";
    let options = [
        "--deny=a.test/x",
        "--deny=h1.test",
        "--allow=a.test",
        "--allow=private.test",
        "--allow=metadata.test",
        "--contact=Ask in #net",
    ];
    for user in USERS {
        let output = rig.run(user, &options, script);
        let expected = [
            "peername: Ask in #net",
            "peername: denied: 169.254.169.254:80, once: --allow 169.254.169.254 allows it (a cloud's metadata service: it may hand out credentials)",
            "peername: denied: a.test:80, once: denied by the rule deny a.test/x",
            "peername: denied: b.test:443, 3 times: --allow b.test allows it",
            "peername: denied: b.test:9999, once: --allow b.test:9999 allows it unopened; for HTTPS or a proxy: b.test:9999/",
            "peername: denied: c.test:80, once: --allow c.test:80 allows it",
            "peername: denied: h1.test:9999, once: no rule names this port, so nothing listens there",
            "peername: denied: metadata.test:80, once: --allow-destination 169.254.169.254:80 allows it (a cloud's metadata service: it may hand out credentials)",
            "peername: denied: private.test:80, once: --allow private.test:80 allows it",
        ];
        assert_eq!(sorted_own_lines(&output.stderr), expected, "{user:?}");
        assert_eq!(output.status.code(), Some(0));
        let quiet = rig.run(user, &[&["-q"], &options[..]].concat(), script);
        assert_eq!(own_lines(&quiet.stderr), [""; 0], "{user:?}");
    }
}

/// Connects to a port of loopback, and prints whether it was refused.
const CONNECT: &str = "connect() { /usr/bin/python3 -c 'import socket, sys
try: socket.create_connection((\"127.0.0.1\", int(sys.argv[1])))
except ConnectionRefusedError: print(\"refused\")' $1; }
";

/// A refused port counts as denied where the host has a server on it, unless the program binds the port itself later.
#[test]
fn refused_port_of_loopback_is_denied_where_the_host_listens() {
    let rig = JailRig::new();
    let host = &rig.stage.lab.balancer;
    let _servers = [9101, 9102]
        .map(|port| host.enter(|| TcpListener::bind(("127.0.0.1", port)).expect("a server")));
    let script = "connect 9101; connect 9102; connect 9103
        /usr/bin/python3 -c 'import socket; socket.create_server((\"127.0.0.1\", 9102))'";
    let refused = format!("{CONNECT}{script}");
    let list = rig.scratch().write("list", "a.test\n");
    for user in USERS {
        let output = rig.run(user, &["--check-list", &list], &refused);
        assert_eq!(output.stdout, b"refused\nrefused\nrefused\n", "{output:?}");
        let errors = stderr_text(&output);
        let added = "+# not public, remove this beginning to allow: localhost:9101";
        assert_eq!(
            errors.lines().skip(1).collect::<Vec<_>>(),
            [added],
            "{user:?}"
        );
        assert_eq!(output.status.code(), Some(122), "{user:?}");
        // What a rule has denied stays denied, whatever the program binds.
        let script = "curl -s -x http://a.test:8080 https://localhost:9102/; connect 9102
            /usr/bin/python3 -c 'import socket; socket.create_server((\"127.0.0.1\", 9102))'";
        let script = format!("{CONNECT}{script}");
        let output = rig.run(user, &["--allow=a.test:8080", "--fail-on-deny"], &script);
        assert_eq!(output.status.code(), Some(122), "{output:?}");
        let lines = own_lines(&output.stderr);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_contains(&lines[0], &["denied: localhost:9102, once: "]);
        let learned = rig.scratch().path_text("learned");
        let output = rig.run(
            user,
            &["--learn", &learned],
            "curl -s http://127.0.0.1:9101/; true",
        );
        let denied = "peername: denied: localhost:9101, once: --allow-tcp localhost:9101 allows it";
        assert_eq!(
            own_lines(&output.stderr).last().map(String::as_str),
            Some(denied)
        );
        fs::remove_file(&learned).expect("the list");
    }
}

/// The jail itself listens on ports 1 and 2 in place of 80 and 443, which the program may bind. A connection to these alternate
/// ports is refused and reported like one to any other port.
#[test]
fn refused_alternate_ports_are_denied_as_any_other() {
    let rig = JailRig::new();
    let script =
        "for port in 1 2 3; do (exec 3<>/dev/tcp/203.0.113.5/$port) 2>/dev/null; done; true";
    let program = ["bash", "-c", script];
    for user in USERS {
        let output = rig.run_program(user, &["--fail-on-deny", "--allow=a.test"], &program);
        let expected = [1, 2, 3].map(|port| {
            format!(
                "peername: denied: 203.0.113.5:{port}, once: --allow 203.0.113.5:{port} allows it"
            )
        });
        assert_eq!(sorted_own_lines(&output.stderr), expected, "{user:?}");
        assert_eq!(output.status.code(), Some(122), "{user:?}");
    }
}

/// Through a proxy to which the jail relays bytes unopened, the program would reach every host. With the advised form of the
/// rule (`HOST:PORT/`), the jail checks the requests to the proxy.
#[test]
fn advised_form_for_a_proxy_opens_no_other_host() {
    let rig = JailRig::new();
    let options = ["--allow=a.test", "--allow=b.test:9999/"];
    let script = "for host in a c; do curl -s -o /dev/null -w '%{http_code} %{http_connect}\n' -x http://b.test:9999 https://$host.test/echo; done; true";
    let printed = rig.succeeds(User::Nobody, &options, script);
    assert_eq!(printed, "200 200\n000 403\n");
}

/// The jail has no rules, but `--check` or `--learn`. The lines advise no `--allow`: with `--check`, a first rule would deny
/// everything else, and `--learn` takes no rules.
#[test]
fn remedy_without_rules_is_no_rule() {
    let rig = JailRig::without_destinations();
    let (_check, check) = rig.start_check(&["a.test", "b.test"]);
    let list = rig.scratch().path_text("list");
    let script = "curl -s http://a.test/echo; curl -s4 http://b.test:9999/; curl -s4 http://b.test:8443/; true";
    let allow_destination = "--allow-destination 10.81.0.1:80";
    let private = format!("peername: denied: a.test:80, once: {allow_destination} allows it");
    let tcp = "peername: denied: b.test:9999, once: --allow-tcp b.test:9999 allows it unopened; for HTTPS or a proxy: \
               --port 9999";
    let http = "peername: denied: b.test:8443, once: --port 8443 allows it";
    let checked = rig.run(User::Nobody, &[&check], script);
    let lines = sorted_own_lines(&checked.stderr);
    assert_eq!(lines, [private.as_str(), http, tcp]);
    let allow_by = format!("\"allow_by\":\"{allow_destination}\"");
    assert_contains(&stdout_text(&checked), &[&allow_by]);
    let learned = rig.run(User::Root, &["--learn", &list], script);
    let lines = sorted_own_lines(&learned.stderr);
    let opened_port =
        "peername: denied: b.test:8443, once: --allow-destination 10.81.0.1:8443 allows it";
    // The first one is the warning of --learn.
    assert_eq!(lines[1..], [private.as_str(), opened_port, tcp]);
    for decider in [&[check.as_str()][..], &["--learn", &list]] {
        let options = ["--allow-destination", "10.81.0.1:80"];
        let options = [decider, &options[..]].concat();
        let printed = rig.succeeds(User::Root, &options, "curl -sS http://a.test/echo");
        assert!(!printed.contains("allow_by"), "{printed}");
    }
}

#[test]
fn methods_that_no_rule_has_are_named_by_the_remedy() {
    let rig = JailRig::new();
    let script =
        "for method in POST PUT POST; do curl -s -o /dev/null -X $method https://a.test/echo; done";
    let output = rig.run(User::Nobody, &["--allow=GET a.test"], script);
    let expected = ["POST a.test' allows it", "PUT a.test' allows it"];
    let lines = own_lines(&output.stderr);
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    let prefixes = [
        "a.test:443, 2 times: --allow '",
        "a.test:443, once: --allow '",
    ];
    for ((line, prefix), remedy) in lines.iter().zip(prefixes).zip(expected) {
        assert_eq!(*line, format!("peername: denied: {prefix}{remedy}"));
    }
}

/// The rules of the host have methods and a path. What is denied has its own line for each reason, and what would allow it opens
/// no more than the request, or says so.
#[test]
fn remedies_and_reasons_are_those_of_the_request() {
    let rig = JailRig::new();
    let script = "curl='curl -s -o /dev/null'; $curl http://a.test/pub/file; $curl https://a.test/; $curl -X post https://a.test/pub
        $curl --path-as-is https://a.test/x/../pub; curl -s https://a.test/";
    let output = rig.run(User::Nobody, &["--allow=GET,HEAD a.test:443/pub"], script);
    let expected = [
        "peername: denied: a.test:443, 2 times: --allow 'GET a.test:443/' allows it (a rule for the path / allows every path)",
        "peername: denied: a.test:443, once: no rule allows it: a rule with methods can't name this one (case matters: `post` is not POST)",
        "peername: denied: a.test:443, once: no rule allows it: servers may read this path as different ones",
        "peername: denied: a.test:80, once: --allow 'GET a.test:80/pub/file' allows it",
    ];
    assert_eq!(sorted_own_lines(&output.stderr), expected);
    let hint = "\"hint\":\"a rule for the path / allows every path\"";
    assert_contains(&stdout_text(&output), &[hint]);
}

#[test]
fn without_a_rule_everything_is_denied_and_a_line_says_so() {
    let rig = JailRig::new();
    let jail = rig.scratch().path_text("peername");
    let script = "curl -sS https://a.test/echo; curl -sS http://b.test/echo";
    let run = |options: &str| {
        rig.run_outside(
            User::Nobody,
            &format!("{jail} jail {options} -- sh -c '{script}'"),
        )
    };
    let output = run("");
    let printed = stdout_text(&output);
    assert_eq!(printed.matches("no rule allows it").count(), 2, "{printed}");
    let lines = own_lines(&output.stderr);
    assert_contains(
        &lines[0],
        &["every request is denied", "--learn", "--allow any"],
    );
    assert_eq!(lines.len(), 3, "{lines:?}");
    // --allow-tcp allows its destinations only.
    let output = run("-q --allow-tcp=a.test:7022");
    let printed = stdout_text(&output);
    assert_eq!(printed.matches("no rule allows it").count(), 2, "{printed}");
    assert_eq!(own_lines(&output.stderr), [""; 0]);
}

/// A process that the program leaves behind keeps a connection open, for which the interceptor drains for a second. The lines
/// about denials come before that.
#[test]
fn denials_are_reported_at_the_exit_although_a_connection_stays_open() {
    let rig = JailRig::new();
    let args = [
        "TCP-LISTEN:9418,bind=10.81.0.1,fork,reuseaddr",
        "SYSTEM:sleep 60",
    ];
    let server = Process::start(&rig.stage.lab.server, "socat", &args);
    let _server = server.wait_listening(&[v4([10, 81, 0, 1], 9418)]);
    let jail = rig.scratch().path_text("peername");
    let script = "curl -s -o /dev/null https://b.test/; \
                  (exec 3<>/dev/tcp/a.test/9418; touch ready; sleep 5) >/dev/null 2>&1 & \
                  until [ -e ready ]; do sleep 0.05; done";
    // Half of the second that a drain may take.
    let line = format!(
        "{jail} jail --allow=a.test:9418 -- bash -c '{script}' 2>errors; sleep 0.5; cat errors"
    );
    let dir = rig.scratch().path_text("");
    let output = rig.run_outside(User::Root, &format!("cd {dir}; {line}"));
    assert_contains(&stdout_text(&output), &["denied: b.test:443, once"]);
}

/// The interceptor is suspended while the program connects and exits, as on a busy host.
#[test]
fn connections_in_the_backlog_at_the_exit_are_denied() {
    let rig = JailRig::new();
    let jail = rig.scratch().path_text("peername");
    let pattern = rig.interceptor_pattern();
    let program = "touch ready; until [ -e go ]; do sleep 0.05; done
        for i in {1..500}; do exec 3<>/dev/tcp/203.0.113.5/9418; done";
    // The interceptor has worker threads, the other processes of the jail have one thread.
    let script = format!(
        "cd {dir}; {jail} jail --allow=a.test:9418 --log=log -- bash -c '{program}' &
         until [ -e ready ]; do sleep 0.05; done
         for pid in $(pgrep -f '{pattern}'); do
             [ $(ls /proc/$pid/task | wc -l) -gt 1 ] && kill -STOP $pid && stopped=$pid
         done
         touch go; wait $!; kill -CONT $stopped",
        dir = rig.scratch().path_text(""),
    );
    let output = rig.run_outside(User::Root, &script);
    super::wait_interceptor_exit(&rig);
    let log = rig.scratch().read("log");
    assert_eq!(log.matches("tcp_not_allowed").count(), 500, "{output:?}");
}

#[test]
fn denial_fails_a_program_that_has_succeeded() {
    let rig = JailRig::new();
    let code = |user: User, options: &[&str], script: &str| {
        let options = [&["-q", "--fail-on-deny", "--allow=a.test"], options].concat();
        let output = rig.run(user, &options, script);
        (output.status.code(), own_lines(&output.stderr))
    };
    let denied = "curl -s -o /dev/null https://b.test/";
    let line = "peername: denied: b.test:443, once: --allow b.test allows it".to_owned();
    for user in USERS {
        assert_eq!(code(user, &[], denied), (Some(122), vec![line.clone()]));
        let allowed = "curl -s -o /dev/null https://a.test/echo";
        assert_eq!(code(user, &[], allowed), (Some(0), Vec::new()));
        let own = format!("{denied}; exit 7");
        assert_eq!(code(user, &[], &own), (Some(7), vec![line.clone()]));
        assert_eq!(code(user, &[], "kill -KILL $$").0, Some(137));
        assert_eq!(code(user, &["--port=53"], "true").0, Some(2));
        assert_eq!(code(user, &["--allow=@/nonexistent"], "true").0, Some(2));
    }
    let script = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let options = ["--fail-on-deny", "--allow=a.test"];
    let mut program = rig.start(User::Nobody, &options, &["sh", "-c", script]);
    program.wait_printed("ready");
    program.signal(Signal::TERM);
    program.assert_exits(3);
    // A killed jail does not leave its program behind.
    let script = "echo ready; exec sleep 60";
    let program = rig.start(User::Nobody, &options, &["sh", "-c", script]);
    program.wait_printed("ready");
    let children: Vec<_> = pidfd::descendants(program.pid())
        .into_iter()
        .map(|child| PidFd::open(child).expect("a process"))
        .collect();
    assert!(!children.is_empty());
    program.signal(Signal::KILL);
    wait_until("its end", || children.iter().all(PidFd::has_exited));
}

#[test]
fn job_that_asks_for_more_than_its_list_fails_with_the_difference() {
    let rig = JailRig::new();
    let list = rig.scratch().write("hosts.txt", "a.test\n");
    let script =
        "curl -s -o /dev/null https://a.test/echo || exit 9; curl -s -o /dev/null https://b.test/
        curl -s -o /dev/null http://b.test/; curl -s http://b.test:9999/; true";
    let options = ["--check-list", &list];
    let output = rig.run(User::Nobody, &options, script);
    assert_eq!(output.status.code(), Some(122), "{output:?}");
    let errors = stderr_text(&output);
    let header = format!("peername: --check-list {list}: ");
    assert!(errors.starts_with(&header), "{errors}");
    let added: Vec<_> = errors.lines().skip(1).collect();
    assert_eq!(
        added,
        [
            "+b.test:80",
            "+b.test",
            "+b.test:9999 # unopened; for HTTPS or a proxy: b.test:9999/"
        ]
    );
    let output = rig.run(User::Nobody, &options, "curl -sS https://a.test/echo");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // A new list has no rules.
    let empty = rig.scratch().write("empty.txt", "# none yet\n");
    for check in [
        &[][..],
        &["--deny=c.test"],
        &["--check=http://127.0.0.1:1/", "--on-check-failure=allow"],
    ] {
        let options = [&["--check-list", &empty], check].concat();
        let output = rig.run(User::Nobody, &options, script);
        assert_eq!(output.status.code(), Some(122), "{output:?}");
        let errors = stderr_text(&output);
        let added: Vec<_> = errors
            .lines()
            .filter(|line| line.starts_with('+'))
            .collect();
        assert_eq!(
            added,
            [
                "+a.test",
                "+b.test:80",
                "+b.test",
                "+b.test:9999 # unopened; for HTTPS or a proxy: b.test:9999/"
            ],
            "{errors}"
        );
    }
    // Two denied destinations need only one line in the list.
    let get = rig.scratch().write("get.txt", "GET b.test\n");
    let post =
        "curl -s -o /dev/null -d x https://b.test/; curl -s -o /dev/null -d x http://b.test/";
    let output = rig.run(User::Nobody, &["--check-list", &get], post);
    let errors = stderr_text(&output);
    assert_eq!(errors.matches("+POST b.test\n").count(), 1, "{errors}");
    assert_eq!(errors.lines().count(), 2, "{errors}");
    // What a rule denies is not reported as missing in the list.
    let denied = ["--deny=a.test", "--allow=c.test", "--check-list", &list];
    let output = rig.run(User::Nobody, &denied, "curl -sS https://a.test/echo");
    assert_eq!(output.status.code(), Some(122), "{output:?}");
    assert_eq!(
        stderr_text(&output),
        "peername: denied: a.test:443, once: denied by the rule deny a.test\n"
    );
}

/// The file of `--log` has audit lines only, and among them those about refused ports. Warnings are on standard error.
#[test]
fn log_has_audit_lines_and_standard_error_the_warnings() {
    let rig = JailRig::new();
    let secret = rig.scratch().write("secret", "treasure\n");
    fs::set_permissions(&secret, Permissions::from_mode(0o644)).expect("chmod");
    let log = rig.scratch().path_text("log");
    let inject = format!("--inject=a.test=X-Mine@{secret}");
    let script = "curl -s -o /dev/null https://a.test/echo; /usr/bin/python3 -c '
import socket
s = socket.socket(); s.setblocking(False)
try: s.connect((\"b.test\", 9999))
except OSError: pass
'; curl -s4 http://b.test:9999/; true";
    let check = "--check=http://127.0.0.1:1/";
    let options = ["--log", &log, &inject, check, "--on-check-failure=allow"];
    let errors = stderr_text(&rig.run(User::Root, &options, script));
    assert_contains(
        &errors,
        &["others may read this secret", "the check service at"],
    );
    let text = fs::read_to_string(&log).expect("the log");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    let is_audit = |line: &Value| {
        ["request", "request admitted"]
            .map(Value::from)
            .contains(&line["message"])
    };
    assert!(lines.iter().all(is_audit), "{text}");
    let refused: Vec<_> = lines
        .iter()
        .filter(|line| line["code"] == "port_not_allowed")
        .map(|line| (&line["host"], &line["port"], &line["decision"]))
        .collect();
    let expected = (
        &Value::from("b.test"),
        &Value::from(9999),
        &Value::from("refused"),
    );
    assert_eq!(refused, [expected; 2], "{text}");
    // With -v, too, standard error has no audit lines.
    let errors = stderr_text(&rig.run(User::Root, &[&["-v"], &options[..]].concat(), script));
    assert!(!errors.contains("request admitted"), "{errors}");
}

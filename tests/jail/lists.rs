//! Access lists and secrets in a jail.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};

use super::denials::own_lines;
use super::start_server;
use super::tcp::start_greeter;
use crate::harness::addr::v4;
use crate::harness::lab::{
    Process, assert_contains, assert_count, assert_fails, stderr_text, stdout_text,
};
use crate::harness::peername::{USERS, User, words};
use crate::harness::rig::jail::JailRig;

const CURL: &str = "curl -sS --max-time 10 -o /dev/null -w '%{http_code} '";

#[test]
fn access_lists_decide_on_what_a_program_requests() {
    let rig = JailRig::new();
    let options = words(
        "-q --deny=a.test/slow --allow=a.test --allow-tcp=b.test:8081 --allow-tcp=a.test:8081",
    );
    for user in USERS {
        let script = format!(
            "{CURL} https://a.test/echo; {CURL} https://a.test/slow; {CURL} https://a.test/x/../slow --path-as-is
             {CURL} http://b.test/echo; {CURL} http://a.test:8081/echo; {CURL} http://b.test:8081/echo 2>/dev/null; true"
        );
        // To relay a connection unopened, the rules have to allow every path of its host: one of a.test is denied, and no rule
        // allows b.test.
        let statuses = rig.succeeds(user, &options, &script);
        assert_eq!(statuses, "200 403 403 403 000 000 ", "{user:?}");
        let options = ["-q", "--allow=a.test", "--allow-tcp=a.test:8081"];
        let script = format!("{CURL} http://a.test:8081/echo");
        assert_eq!(rig.succeeds(user, &options, &script), "200 ", "{user:?}");
    }
}

/// One list, as options or as a file, names methods, ports of other protocols, and hosts with private addresses. No other
/// option is needed for them.
#[test]
fn one_list_names_methods_ports_and_private_hosts() {
    let rig = JailRig::without_destinations();
    let _greeter = start_greeter(&rig);
    let list = "GET,HEAD a.test/echo # read only\nb.test\nb.test:80\nh1.test\na.test:7022\n10.81.0.1:8081\n";
    let file = rig.scratch().write("list", list);
    let greet = |to: &str| format!("timeout 10 bash -c 'cat </dev/tcp/{to}' 2>/dev/null");
    let script = format!(
        "{CURL} https://a.test/echo; {CURL} -I https://a.test/echo; {CURL} -d x https://a.test/echo; {CURL} https://a.test/slow
         {CURL} https://b.test/echo; {CURL} http://b.test/echo; {CURL} https://h1.test/echo; {CURL} http://h1.test/echo
         {CURL} http://10.81.0.1:8081/echo; {CURL} https://10.81.0.1/echo; {}; {}; true",
        greet("a.test/7022"),
        greet("b.test/7022"),
    );
    let expected = "200 200 403 403 200 200 200 403 200 403 hello from the server\n";
    let rules: Vec<_> = list
        .lines()
        .map(|line| format!("--allow={}", line.split(" #").next().expect("a rule")))
        .collect();
    let rules: Vec<_> = rules.iter().map(String::as_str).collect();
    for options in [&rules[..], &[&format!("--allow=@{file}")]] {
        let options = [&["-q"], options].concat();
        assert_eq!(rig.succeeds(User::Nobody, &options, &script), expected);
    }
    let why = rig.succeeds(
        User::Nobody,
        &["-q", "--allow=h1.test"],
        "curl -sS http://h1.test/echo",
    );
    assert_contains(&why, &["destination_not_public", "h1.test:80"]);
    let domain = ["-q", "--allow=*.test:443", "--allow=*.test:7022"];
    let script = format!("{CURL} https://a.test/echo; {}; true", greet("a.test/7022"));
    assert_eq!(rig.succeeds(User::Nobody, &domain, &script), "403 ");
}

/// Options of the command line replace those of the `[jail]` table in the file. Rules of the command line follow the
/// table's.
#[test]
fn file_has_the_options_and_the_command_line_overrides_them() {
    let rig = JailRig::new();
    let text = "[jail]\nrules = [\"deny a.test/slow\", \"allow GET a.test\"]\nfail-on-deny = true\nquiet = true\n";
    let file = rig.scratch().write("peername.toml", text);
    let script = format!(
        "{CURL} https://a.test/echo; {CURL} -d x https://a.test/echo; {CURL} https://b.test/echo"
    );
    let run = |options: &[&str]| {
        let options = [&["--config", &file], options].concat();
        let output = rig.run(User::Nobody, &options, &script);
        let printed = stdout_text(&output);
        (output.status.code(), printed)
    };
    assert_eq!(run(&[]), (Some(122), "200 403 403 ".to_owned()));
    let more = ["--allow=b.test", "--allow=POST a.test"];
    assert_eq!(run(&more), (Some(0), "200 200 200 ".to_owned()));
    // Among rules of the command line, too, the first match decides.
    let rules = ["--deny=b.test/echo", "--allow=b.test"];
    assert_eq!(run(&rules), (Some(122), "200 403 403 ".to_owned()));
    for (text, expected) in [
        (
            "[jail]\nfail-on-denial = true\n",
            "did you mean `fail-on-deny`?",
        ),
        ("[jail]\nlisten = \"127.0.0.1:1\"\n", "listen"),
        ("[intercept]\n", "no [jail] table"),
    ] {
        let file = rig.scratch().write("wrong.toml", text);
        assert_fails(
            &rig.run(User::Nobody, &["--config", &file], "true"),
            2,
            &[expected],
        );
    }
}

/// Rules of the file and of the command line are one list. Rules of the file that the command line makes ineffective are
/// reported.
#[test]
fn rules_of_a_file_are_kept_or_reported() {
    let rig = JailRig::new();
    let text = "[jail]\ndeny = [\"a.test/slow\"]\nhide = [\"secret\"]\n";
    let secret = rig.scratch().write("secret", "treasure\n");
    let other = rig.scratch().write("other", "");
    let file = rig.scratch().write("peername.toml", text);
    let script = format!("{CURL} https://a.test/slow; {CURL} https://b.test/slow");
    let run = |options: &[&str]| {
        let options = [&["--config", &file], options].concat();
        let output = rig.run(User::Nobody, &options, &script);
        let printed = stdout_text(&output);
        (printed, stderr_text(&output))
    };
    let (printed, _) = run(&["--deny=b.test/slow", "--allow=any"]);
    assert_eq!(printed, "403 403 ");
    let learned = rig.scratch().path_text("learned");
    let (printed, errors) = run(&["--learn", &learned]);
    assert_eq!(printed, "200 200 ");
    assert_contains(
        &errors,
        &["deny of ", "peername.toml have no effect beside --learn\n"],
    );
    let list = rig.scratch().read("learned");
    assert_contains(&list, &[&format!("--config {file} ")]);
    let hide = ["--config", &file, "--hide", &other, "--allow=any"];
    let shown = rig.run(User::Nobody, &hide, &format!("cat {secret}; echo over"));
    assert_eq!(stdout_text(&shown), "over\n");
    // The file's denial comes first and counts. That of the command line follows `any`, which matches before it.
    let (printed, errors) = run(&["--allow=any", "--deny=b.test"]);
    assert_eq!(printed, "403 200 ");
    assert_contains(
        &errors,
        &["the rule deny b.test denies nothing: allow any comes before it"],
    );
}

/// An error names the file that has the faulty option, and a denial the file in which a rule would allow it.
#[test]
fn messages_name_the_file() {
    let rig = JailRig::new();
    let run = |table: &str, options: &[&str]| {
        let file = rig
            .scratch()
            .write("peername.toml", &format!("[jail]\n{table}\n"));
        let options = [&["--config", &file], options].concat();
        let script = format!("{CURL} https://b.test/echo; {CURL} http://a.test:8081/");
        stderr_text(&rig.run(User::Nobody, &options, &script))
    };
    for (table, options, expected) in [
        (
            "quiet = true\nrules = [\"allow @none\"]",
            &[][..],
            "peername.toml, line 3, [jail]: rules allow @",
        ),
        (
            "fail-on-deny = true\nhide = [\"none\"]",
            &[],
            "peername.toml, line 3, [jail]: hide ",
        ),
        (
            "hide = [\"/proc\"]",
            &["--hide=/none"],
            "peername: --hide /none",
        ),
        (
            "hide = [\"none\"]",
            &["--hide=/proc"],
            "peername.toml, line 2, [jail]: hide ",
        ),
        (
            "rules = [\"allow c.test\"]",
            &[],
            "b.test:443, once: \"allow b.test\" in rules of ",
        ),
        (
            "allow = [\"c.test\"]",
            &[],
            "b.test:443, once: \"b.test\" in allow of ",
        ),
    ] {
        assert_contains(&run(table, options), &[expected]);
    }
}

/// A file of the repository is named where it was forgotten, and not applied.
#[test]
fn forgotten_file_of_the_repository_is_named() {
    let rig = JailRig::new();
    let jail = rig.scratch().path_text("peername");
    let dir = rig.scratch().path_text("");
    let run = |options: &str| {
        let script = format!(
            "mkdir -p {dir}/sub/dir && cd {dir}/sub/dir && {jail} jail {options} -- curl -sS http://a.test/"
        );
        let output = rig.run_outside(User::Root, &script);
        assert_contains(&stdout_text(&output), &["no rule allows it"]);
        stderr_text(&output)
    };
    let text = "[jail]\nrules = [\"allow a.test\"]\n";
    rig.scratch().write("peername.toml", text);
    let named = "peername jail --config ../../peername.toml -- CMD";
    assert_contains(&run(""), &[named]);
    assert!(!run("--allow=b.test").contains(named));
    rig.scratch().write("peername.toml", "[intercept]\n");
    assert_contains(&run(""), &["--learn FILE"]);
}

/// The path of a list, or of a log, in a configuration file is relative to that file, not to the working directory.
#[test]
fn list_that_a_file_names_is_beside_it() {
    let rig = JailRig::new();
    let text = "[jail]\nrules = [\"allow @hosts.txt\"]\nquiet = true\nlog = \"requests.jsonl\"\n";
    let file = rig.scratch().write("peername.toml", text);
    rig.scratch().write("hosts.txt", "a.test\n");
    let script = format!("{CURL} https://a.test/echo; {CURL} https://b.test/echo");
    let printed = rig.succeeds(User::Root, &["--config", &file], &script);
    assert_eq!(printed, "200 403 ");
    assert_contains(&rig.scratch().read("requests.jsonl"), &["b.test"]);
}

/// A rule for `localhost` allows the host's loopback, by name and by address. No other rule does.
#[test]
fn localhost_is_the_loopback_of_the_host() {
    let rig = JailRig::without_destinations();
    let host = &rig.stage.lab.balancer;
    let _server = start_server(host, [127, 0, 0, 1], 8082);
    let args = ["-u", "-m", "http.server", "--bind", "127.0.0.1", "8080"];
    let web = Process::start(host, "/usr/bin/python3", &args);
    let _web = web.wait_listening(&[v4([127, 0, 0, 1], 8080)]);
    let connect = |to: &str| format!("timeout 10 bash -c 'cat </dev/tcp/{to}/8082' 2>/dev/null");
    let relayed: String = ["localhost", "127.0.0.1", "::1"]
        .map(|to| connect(to) + ";")
        .concat();
    let script = format!(
        "{relayed} {CURL} http://localhost:8080/; {CURL} http://127.0.0.1:8080/; {CURL} http://[::1]:8080/; true"
    );
    let allowed = ["-q", "--allow=localhost:8082", "--allow=localhost:8080"];
    for user in USERS {
        let printed = rig.succeeds(user, &allowed, &script);
        assert_eq!(printed, "served\nserved\nserved\n200 200 200 ", "{user:?}");
        let others = [
            "-q",
            "--allow=*:8082",
            "--allow=*:8080",
            "--allow=127.0.0.0/8",
        ];
        let printed = rig.succeeds(user, &others, &script);
        assert_eq!(printed, "403 403 403 ", "{user:?}");
        // A rule opens this port, at which no server listens: the interceptor accepts the connection.
        let script = format!("{CURL} http://localhost:8000/; true");
        let printed = rig.succeeds(user, &["-q", "--allow=localhost:8000"], &script);
        assert_eq!(printed, "502 ", "{user:?}");
    }
}

/// The list allows one method of a host that has a private address. A rule for the host as a whole would open that address, and
/// all other methods too: `--allow-destination` is named instead.
#[test]
fn refused_address_of_a_host_with_methods_takes_no_wider_rule() {
    let rig = JailRig::without_destinations();
    let script = format!("{CURL} http://a.test/; true");
    let output = rig.run(User::Nobody, &["--allow=GET a.test"], &script);
    let denied = "peername: denied: a.test:80, once: --allow-destination 10.81.0.1:80 allows it";
    assert_eq!(own_lines(&output.stderr), [denied]);
}

/// The origin gets the secret, and the program can't read its file.
#[test]
fn program_does_not_hold_an_injected_secret() {
    let rig = JailRig::new();
    let file = rig.scratch().write("secret", "treasure\n");
    for user in USERS {
        // The same user may read it outside.
        let owner = if user == User::Nobody { 65_534 } else { 0 };
        chown(&file, Some(owner), None).expect("chown");
        fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("chmod");
        assert!(
            rig.run_outside(user, &format!("grep -q treasure {file}"))
                .status
                .success()
        );
        let inject = format!("--inject=a.test=X-Mine@{file}");
        let script = format!("curl -sS https://a.test/echo; cat {file}; env; true");
        let printed = rig.succeeds(user, &["-q", "--allow=a.test", &inject], &script);
        assert!(printed.contains(" x=treasure "), "{user:?}: {printed}");
        let output = rig.run(user, &["--allow=b.test", &inject], "true");
        assert_contains(
            &stderr_text(&output),
            &["--inject for a.test:443: no rule allows", "--allow a.test "],
        );
        assert_count(&printed, "treasure", 1);
    }
}

/// The credentials of an outer proxy are in no command line that the program can read.
#[test]
fn credentials_of_the_outer_proxy_are_not_shown() {
    let rig = JailRig::new();
    let option = "--upstream-proxy=http://user:SECRET@10.81.0.1:3128";
    let script = format!("pgrep -a -f '{}'", rig.interceptor_pattern());
    // With `--fail-on-deny`, the process that was started is a parent of the program.
    for options in [&["-q", option][..], &["-q", option, "--fail-on-deny"]] {
        for user in USERS {
            let printed = rig.succeeds(user, options, &script);
            assert_contains(&printed, &["http://***********@10.81.0.1:3128"]);
            assert!(!printed.contains("SECRET"), "{printed}");
        }
    }
}

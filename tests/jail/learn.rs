//! `--learn` writes a list of what a program asks for. With that list as its rules, the program runs again.

use std::fs;
use std::os::unix::fs::chown;

use super::start_server;
use crate::harness::lab::{assert_contains, stderr_text, stdout_text, wait_for};
use crate::harness::peername::{USERS, User};
use crate::harness::rig::jail::JailRig;

const SCRIPT: &str =
    "curl -sS https://a.test/echo; curl -sS http://b.test/echo; curl -sS https://b.test/echo
    curl -sS http://b.test:8080/echo -o /dev/null; timeout 10 bash -c 'cat </dev/tcp/a.test/9418'";

#[test]
fn learned_list_allows_the_same_command_and_nothing_else() {
    let rig = JailRig::new();
    let _server = start_server(&rig.stage.lab.server, [10, 81, 0, 1], 9418);
    for user in USERS {
        let dir = rig.scratch().path(&format!("{user:?}"));
        fs::create_dir(&dir).expect("mkdir");
        let owner = (user == User::Nobody).then_some(65_534);
        chown(&dir, owner, None).expect("chown");
        let file = dir.join("list");
        fs::write(&file, "# mine\nc.test\n").expect("write");
        chown(&file, owner, None).expect("chown");
        let file = file.to_str().expect("text");

        let log = dir.join("log");
        let log_option = format!("--log={}", log.display());
        let learned = rig.run(user, &["-q", "--learn", file, &log_option], SCRIPT);
        assert!(learned.status.success(), "{user:?}: {learned:?}");
        assert_contains(&stderr_text(&learned), &["EVERYTHING IS ALLOWED"]);
        // The list is complete when the jail has exited.
        let list = fs::read_to_string(file).expect("the list");
        let rules: Vec<_> = list
            .lines()
            .filter(|line| !line.starts_with("# --"))
            .collect();
        let expected = [
            "a.test",
            "a.test:9418",
            "b.test",
            // A private address without TLS needs a rule with the port.
            "b.test:80",
            "b.test:8080",
            "# mine",
            "c.test",
        ];
        assert_eq!(rules, expected, "{list}");
        let root = rig.scratch().path_text("root.pem");
        let options = format!("--allow @{file} --extra-ca {root} -- sh");
        assert!(list.contains(&options), "{list}");
        let left = fs::read_dir(&dir).expect("the directory").count();
        assert_eq!(left, 2, "the list and the log");
        let log = wait_for("the audit lines", || {
            let log = fs::read_to_string(&log).expect("the log");
            (log.matches("\"message\":\"request\"").count() == 5).then_some(log)
        });
        assert_eq!(log.matches("\"how\":\"learned\"").count(), 5, "{log}");

        let allow = format!("--allow=@{file}");
        let options = ["-q", &allow];
        let printed = rig.succeeds(user, &options, SCRIPT);
        assert_eq!(printed.as_bytes(), learned.stdout, "{user:?}");
        assert!(printed.ends_with("served\n"), "{printed}");
        let other = "curl -sS https://h1.test/echo; timeout 10 bash -c 'cat </dev/tcp/b.test/9418'";
        let printed = stdout_text(&rig.run(user, &options, other));
        assert!(printed.contains("no rule allows it"), "{user:?}: {printed}");
        assert!(!printed.contains("served"), "{user:?}: {printed}");
    }
}

/// Nothing listens at these ports of localhost yet. If the program starts a server there later, a rule would lead its next run
/// to the host instead, where nothing listens.
#[test]
fn port_of_localhost_without_a_server_is_neither_listed_nor_reported() {
    let rig = JailRig::new();
    let file = rig.scratch().path_text("list");
    let script =
        "curl -s -o /dev/null http://127.0.0.1:8000/; curl -s -o /dev/null http://127.0.0.1/
        timeout 10 bash -c 'cat </dev/tcp/127.0.0.1/5432'; true";
    let errors = stderr_text(&rig.run(User::Root, &["--learn", &file], script));
    assert!(!errors.contains("denied: "), "{errors}");
    let list = rig.scratch().read("list");
    assert!(!list.contains("localhost:"), "{list}");
}

/// A test suite waits by connect(2) until its own server listens, at a port that the jail has open for other hosts.
#[test]
fn program_waits_for_its_own_server_at_a_port_that_is_open_for_other_hosts() {
    let rig = JailRig::new();
    let list = rig.scratch().path_text("list");
    let script = rig.scratch().write("suite.py", SUITE);
    for options in [["--learn", &list], ["--allow", "a.test"]] {
        for user in USERS {
            let printed = rig.succeeds(user, &options, &format!("/usr/bin/python3 {script}"));
            assert_eq!(printed, "refused\n200\nGET a.test\n", "{user:?}");
        }
        let list = rig.scratch().read("list");
        assert!(!list.contains("localhost:"), "{list}");
    }
}

/// Standard error names options that allow both addresses of localhost, because a program may first try the one without a
/// server.
#[test]
fn server_on_localhost_is_learned_with_the_options_that_are_named() {
    let rig = JailRig::new();
    let _server = start_server(&rig.stage.lab.balancer, [127, 0, 0, 1], 5432);
    let file = rig.scratch().path_text("list");
    let script = "timeout 10 bash -c 'cat </dev/tcp/::1/5432'";
    let denied = rig.run(User::Root, &["--learn", &file], script);
    assert_eq!(denied.stdout, b"", "{denied:?}");
    let options = [
        "--allow-destination",
        "127.0.0.1:5432",
        "--allow-destination",
        "[::1]:5432",
    ];
    let errors = stderr_text(&denied).replace('\'', "");
    assert_contains(&errors, &[&options.join(" ")]);
    assert_contains(&rig.scratch().read("list"), &["to allow: localhost:5432"]);
    // The server listens at one of the two addresses only.
    let options = [&["-q", "--learn", &file], &options[..2]].concat();
    assert_eq!(rig.succeeds(User::Root, &options, script), "served\n");
    let list = rig.scratch().read("list");
    assert!(list.ends_with("\nlocalhost:5432\n"), "{list}");
    let allow = format!("--allow=@{file}");
    let options = ["-q", &allow];
    assert_eq!(rig.succeeds(User::Root, &options, script), "served\n");
}

/// At 443 the name is listed, because a certificate proves it. So only the run that learns needs an option.
#[test]
fn private_host_that_the_list_has_is_reported_as_such() {
    let rig = JailRig::without_destinations();
    let file = rig.scratch().path_text("list");
    let script = "curl -s -o /dev/null https://a.test/echo; curl -s -o /dev/null http://b.test/";
    let errors = stderr_text(&rig.run(User::Root, &["--learn", &file], script));
    let expected = [
        "a.test:443, once: --allow-destination 10.81.0.1:443 allows it while it is learned; the list has it now\n",
        "b.test:80, once: --allow-destination 10.81.0.1:80 allows it\n",
    ];
    assert_contains(&errors, &expected);
    assert!(
        rig.scratch()
            .read("list")
            .ends_with("\na.test\n# not public, remove this beginning to allow: b.test:80\n")
    );
    let allow = format!("--allow=@{file}");
    let printed = rig.succeeds(User::Root, &[&allow], "curl -sS https://a.test/echo");
    assert!(printed.starts_with("GET a.test "), "{printed}");
}

/// The one option that standard error names allows both the port and the private address. The list has the same rule.
#[test]
fn private_host_at_another_port_is_learned_with_the_option_that_is_named() {
    let rig = JailRig::without_destinations();
    let _server = start_server(&rig.stage.lab.server, [10, 81, 0, 1], 5433);
    for host in ["a.test", "10.81.0.1"] {
        let file = rig.scratch().path_text(&format!("list of {host}"));
        let script = format!("timeout 10 bash -c 'cat </dev/tcp/{host}/5433'");
        let denied = rig.run(User::Root, &["--learn", &file], &script);
        let option = format!("--allow-tcp={host}:5433");
        assert_contains(&stderr_text(&denied), &[&option.replace('=', " ")]);
        let options = [
            "-q",
            "--learn",
            &file,
            &option,
            "--allow-tcp=*:5433",
            "--allow-tcp=*:8443",
        ];
        assert_eq!(rig.succeeds(User::Root, &options, &script), "served\n");
        let list = rig.scratch().read(&format!("list of {host}"));
        assert!(list.ends_with(&format!("\n{host}:5433\n")), "{list}");
        assert_contains(&list, &[&option.replace('=', " ")]);
        // The option would open every other host at this port. At HTTP's, the rules of the list don't relay.
        assert!(
            !list.contains("*:5433") && list.contains("*:8443"),
            "{list}"
        );
        let allow = format!("--allow=@{file}");
        let printed = rig.succeeds(User::Root, &["-q", &allow], &script);
        assert_eq!(printed, "served\n");
    }
    // Only a rule with an exact name or address allows a private destination.
    let script = "timeout 10 bash -c 'cat </dev/tcp/a.test/5433'";
    let check = "--check=http://127.0.0.1:1/";
    let options = ["--on-check-failure=allow", check, "--allow-tcp=*:5433"];
    let output = rig.run(User::Root, &options, script);
    assert_eq!(output.stdout, b"", "{output:?}");
}

/// Without the `@`, `--allow` takes the name of a list for a host, and denies every other host.
#[test]
fn list_without_its_at_sign_is_noticed() {
    let rig = JailRig::new();
    let output = rig.run(User::Root, &["--allow=Cargo.toml"], "true");
    assert_contains(
        &stderr_text(&output),
        &["for the rules in it write @Cargo.toml"],
    );
}

#[test]
fn file_that_is_no_list_is_not_replaced() {
    let rig = JailRig::new();
    let file = rig.scratch().write("other", "not a list\n");
    let code = |options: &[&str]| rig.run(User::Root, options, "true").status.code();
    assert_eq!(code(&["--learn", &file]), Some(2));
    assert_eq!(rig.scratch().read("other"), "not a list\n");
    assert_eq!(code(&["--learn", "/nonexistent/list"]), Some(2));
    assert_eq!(code(&["--learn", &file, "--allow=a.test"]), Some(2));
    assert_eq!(code(&["--allow", &format!("@{file}")]), Some(2));
}

const SUITE: &str = include_str!("learn/suite.py");

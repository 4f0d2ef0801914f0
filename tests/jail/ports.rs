//! Servers of the program on the ports that the jail opens.

use crate::harness::lab::stdout_text;
use crate::harness::peername::{USERS, User};
use crate::harness::rig::jail::JailRig;

/// A server is reached at the address that it binds, and other hosts are still reached at theirs.
#[test]
fn servers_of_the_program_get_the_ports_that_they_bind() {
    let rig = JailRig::new();
    for (name, servers) in [
        (
            "v4",
            "serve(v4, '0.0.0.0'), [(v4, '127.0.0.1'), (v4, '127.0.0.2')]",
        ),
        ("v6", "serve(v6, '::', True), [(v6, '::1')]"),
        (
            "both",
            "serve(v6, '::', False), [(v4, '127.0.0.1'), (v6, '::1')]",
        ),
        ("loopback", "serve(v4, '127.0.0.1'), [(v4, '127.0.0.1')]"),
    ] {
        let script = format!("{SERVERS}\ncheck(*({servers}))\nprint('ok')");
        let script = rig.scratch().write(&format!("{name}.py"), &script);
        for user in USERS {
            let printed = rig.succeeds(
                user,
                &["-q", "--port=8081", "--allow-tcp=a.test:7022"],
                &format!("/usr/bin/python3 {script}"),
            );
            assert_eq!(printed, "ok\n", "{name}: {user:?}");
        }
    }
}

/// `--learn` opens usual ports without an option, such as those of databases. The program can bind them, also in a network
/// namespace of its own.
#[test]
fn usual_ports_of_learning_are_the_programs_too() {
    let rig = JailRig::new();
    let list = rig.scratch().path_text("learned.txt");
    let inner = rig.scratch().write("inner.py", INNER);
    let script = format!(
        "redis-server --port 6379 --save '' --daemonize yes >/dev/null && \
         for i in $(seq 50); do redis-cli ping 2>/dev/null | grep PONG && break; sleep 0.1; done; redis-cli shutdown; \
         unshare --user --map-root-user --net /usr/bin/python3 {inner}; curl -sS http://127.0.0.1/ | grep -c destination_; \
         curl -sS http://a.test/echo"
    );
    // With --port the interceptor answers at loopback, too, as the proxy of that port.
    let options = ["-q", "--allow-mounts", "--port=80", "--learn", &list];
    let printed = rig.succeeds(User::Root, &options, &script);
    let lines: Vec<_> = printed.lines().collect();
    let [pong, in_use, still_open, other] = lines[..] else {
        panic!("{printed}");
    };
    assert_eq!([pong, in_use, still_open], ["PONG", "True", "1"]);
    assert!(other.starts_with("GET a.test "), "{other}");
}

/// A rule opens its port at the hosts that it names and to the requests that it allows, a rule that denies at none, and `--port`
/// at all hosts that are allowed.
#[test]
fn port_of_a_rule_is_open_at_no_other_host() {
    let rig = JailRig::without_destinations();
    let list = rig
        .scratch()
        .write("list", "c.test:8080\n*.d.test\n203.1.1.0/24\n");
    let check_list = format!("--check-list={list}");
    let denial = "--deny=PUT c.test:9000";
    let partial = ["--allow=GET 203.1.1.1:9000/x", "--allow=any"];
    for (options, url, is_open) in [
        (
            &[denial, "--allow=any"][..],
            "http://203.1.1.1:9000/",
            false,
        ),
        (
            &["--allow=GET c.test:9000/x", "--allow=any"],
            "http://203.1.1.1:9000/",
            false,
        ),
        (&partial[..], "http://203.1.1.1:9000/x", true),
        (&partial[..], "http://203.1.1.1:9000/y", false),
        (
            &["--allow=c.test:8080", "--allow=any"],
            "http://203.1.1.1:8080/",
            false,
        ),
        (&[check_list.as_str()], "http://203.1.1.1:8080/", false),
        // A name whose private address a rule opens for TLS at port 443.
        (&[denial, "--allow=a.test"], "https://a.test:9000/", false),
        (&["--allow=a.test:9000/"], "https://a.test:9000/", true),
        (
            &["--port=9000", "--allow=a.test"],
            "https://a.test:9000/",
            true,
        ),
    ] {
        let options = [&["-q"][..], options].concat();
        let script = format!("curl -sk -m 9 {url} || true");
        let output = rig.run(User::Nobody, &options, &script);
        let answer = stdout_text(&output);
        // The lab has no server at this port, and no route to the public address.
        let code = match is_open {
            true => "\"code\":\"connect_",
            false => "\"code\":\"destination_port\"",
        };
        assert!(answer.contains(code), "{options:?}: {output:?}");
    }
}

const INNER: &str = include_str!("ports/inner.py");

const SERVERS: &str = include_str!("ports/servers.py");

//! `--allow-tcp`: protocols other than HTTP, to the destinations that are listed.

use std::net::TcpListener;

use super::denials::own_lines;
use crate::harness::addr::v4;
use crate::harness::lab::{Process, stderr_text, wait_until};
use crate::harness::peername::User;
use crate::harness::programs::server::sshd;
use crate::harness::rig::jail::JailRig;

const GREETER: &str = include_str!("tcp/greeter.py");

pub(super) fn start_greeter(rig: &JailRig) -> Process {
    let script = rig.scratch().write("greeter.py", GREETER);
    let greeter = Process::start(&rig.stage.lab.server, "/usr/bin/python3", &["-u", &script]);
    greeter.wait_logged("ready");
    greeter
}

/// In SSH, SMTP and most databases the server sends first.
#[test]
fn listed_destination_is_relayed_and_no_other() {
    let rig = JailRig::new();
    let _greeter = start_greeter(&rig);
    let connect = |host: &str| format!("timeout 10 bash -c 'cat </dev/tcp/{host}/7022'");
    let options = ["--allow-tcp=a.test:7022"];
    let printed = rig.succeeds(User::Nobody, &options, &connect("a.test"));
    assert_eq!(printed, "hello from the server\n");
    for host in ["b.test", "10.81.0.1"] {
        let output = rig.run(User::Nobody, &options, &connect(host));
        assert!(
            !output.status.success() && output.stdout.is_empty(),
            "{host}: {output:?}"
        );
    }
    let refused = rig.run(User::Nobody, &[], &connect("a.test"));
    assert!(stderr_text(&refused).contains("refused"), "{refused:?}");
}

#[test]
fn listed_destination_is_checked_as_a_connect() {
    let rig = JailRig::new();
    let _greeter = start_greeter(&rig);
    let (check, option) = rig.start_check(&["a.test"]);
    let options = [&option[..], "--allow-tcp=*.test:7022"];
    let connect = |host: &str| format!("timeout 10 bash -c 'cat </dev/tcp/{host}/7022'");
    let printed = rig.succeeds(User::Nobody, &options, &connect("a.test"));
    assert_eq!(printed, "hello from the server\n");
    let denied = rig.run(User::Nobody, &options, &connect("b.test"));
    assert!(denied.stdout.is_empty(), "{denied:?}");
    wait_until("the requests of the check", || {
        let log = check.log();
        let asked = ["a.test:7022 CONNECT", "b.test:7022 CONNECT"];
        asked.iter().all(|line| log.contains(line))
    });
}

/// In SSH the server sends first.
#[test]
fn ssh_and_git_over_ssh_reach_a_listed_host() {
    let rig = JailRig::new();
    let (server, scratch) = (&rig.stage.lab.server, rig.scratch());
    let addr = v4([10, 81, 0, 1], 22);
    let config = sshd::write_config(server, scratch, &[addr]);
    let args = ["-D", "-e", "-f", &config];
    let sshd = Process::start_through(server, sshd::THROUGH, "/usr/sbin/sshd", &args);
    let sshd = sshd.wait_listening(&[addr]);
    let dir = scratch.path_text(".");
    let make = format!(
        "cd {dir} && git init -q work && cd work && git -c user.name=t -c user.email=t@a.test commit -q --allow-empty -m first && \
         git clone -q --bare . ../repo.git"
    );
    server.run("sh", &["-ec", &make]);
    let ssh = format!(
        "ssh -F/dev/null -oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null -oBatchMode=yes -i {}",
        scratch.path_text("user_key")
    );
    let script = format!(
        "dir=$(mktemp -d); trap 'rm -rf $dir' EXIT; {ssh} root@a.test echo hello && cd $dir && GIT_SSH_COMMAND='{ssh}' git clone -q \
         ssh://root@a.test{}/repo.git c && git -C c log --format=%s",
        scratch.path_text("").trim_end_matches('/')
    );
    let options = ["-q", "--allow-tcp=a.test:22"];
    let printed = rig.succeeds(User::Root, &options, &script);
    assert_eq!(printed, "hello\nfirst\n", "{}", sshd.log());
    let other = rig.run(
        User::Root,
        &options,
        &format!("{ssh} root@b.test echo hello"),
    );
    assert!(
        !other.status.success() && other.stdout.is_empty(),
        "{other:?}"
    );
}

/// The jail listens on the port for another host, so it accepts the connection, and then denies it because of its destination.
#[test]
fn loopback_is_reported_as_localhost_where_its_port_is_open_for_another_host() {
    let rig = JailRig::new();
    let host = &rig.stage.lab.balancer;
    let _server = host.enter(|| TcpListener::bind(("127.0.0.1", 7022)).expect("a server"));
    let output = rig.run(
        User::Nobody,
        &["--allow=a.test:7022"],
        "curl -s http://127.0.0.1:7022/; true",
    );
    let denied = "peername: denied: localhost:7022, once: --allow localhost:7022 allows it unopened; for HTTPS or a proxy: \
                  localhost:7022/";
    assert_eq!(own_lines(&output.stderr), [denied]);
}

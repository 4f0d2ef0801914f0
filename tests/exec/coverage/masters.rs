//! Servers with a master process that clears the environment of its children, or hands its listeners to a new
//! program: the library is lost there, and clients are seen all the same.

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{Scratch, assert_succeeds, wait_until};
use crate::harness::programs::server::nginx;
use crate::harness::rig::exec::{MODES, ProgramRig, v2};

/// Postfix relays only for `mynetworks`. The balancer is in it, and the client that the header names is not.
#[test]
fn postfix_does_not_relay_for_a_remote_client() {
    let scratch = Scratch::new();
    let config = write_postfix_config(&scratch);
    // Postfix does not run as process 1, so a shell is process 1 here.
    let script = "/usr/lib/postfix/sbin/master -c $0 -d; exit $?";
    for mode in MODES {
        let program = ProgramRig::with_mode(mode, &[], &["sh", "-c", script, &config]);
        let client = fresh_client_v4();
        let conn = Conn::connect_and_send(&program.lab.balancer, LISTEN_V4, &v2(client));
        let send_and_wait = |line: &str, code: &str| {
            conn.send(line.as_bytes());
            conn.recv_text_until(|answer| {
                let last = answer.lines().last().unwrap_or_default();
                answer.ends_with("\r\n") && last.starts_with(code)
            });
        };
        send_and_wait("", "220 ");
        send_and_wait("EHLO client.example\r\n", "250 ");
        send_and_wait("MAIL FROM:<a@client.example>\r\n", "250 ");
        send_and_wait("RCPT TO:<x@elsewhere.example>\r\n", "554 ");
        let seen = format!("connect from unknown[{}]", client.ip());
        program.process.wait_logged(&seen);
        program.assert_refused(b"GET / HTTP/1.0\r\n\r\n");
    }
}

#[test]
fn dovecot_logs_the_client() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("run")).expect("a directory");
    let config = DOVECOT.replace("DIR", &scratch.path_text("."));
    let config = scratch.write("dovecot.conf", &config);
    let program = ProgramRig::start(&["dovecot", "-F", "-c", &config]);
    for _ in 0..5 {
        let client = fresh_client_v4();
        let request = [&v2(client)[..], b"a LOGOUT\r\n"].concat();
        let (answer, _) =
            Conn::connect_and_send(&program.lab.balancer, LISTEN_V4, &request).recv_to_end();
        assert!(answer.starts_with(b"* OK"), "{}", program.process.log());
        let seen = format!("rip={},", client.ip());
        program.process.wait_logged(&seen);
    }
    program.assert_refused(b"GET / HTTP/1.0\r\n\r\n");
}

/// nginx as a daemon: SIGUSR2 starts a new master, with a new environment, on the old listeners; then SIGQUIT ends the
/// old one. Clients come all the while, and each is logged with its own address.
#[test]
fn nginx_upgrade_loses_no_client() {
    let scratch = Scratch::new();
    scratch.write("index.html", "hello\n");
    let server = format!("listen {LISTEN_V4}; root DIR;");
    let main = "user www-data; worker_processes 2;";
    nginx::write_config(&scratch, main, nginx::PEER, &server);
    let config = scratch.read("nginx.conf").replace("daemon off;", "");
    let config = scratch.write("nginx.conf", &config);
    let script = UPGRADE.replace("DIR", &scratch.path_text("."));
    let program = ProgramRig::start(&["sh", "-c", &script, &config]);
    let mut served = Vec::new();
    let mut serve_clients = |times: usize| {
        for _ in 0..times {
            let client = fresh_client_v4();
            let request = [&v2(client)[..], b"GET / HTTP/1.0\r\n\r\n"].concat();
            let (answer, _) =
                Conn::connect_and_send(&program.lab.balancer, LISTEN_V4, &request).recv_to_end();
            assert!(answer.ends_with(b"hello\n"), "{}", program.process.log());
            served.push(format!("{} {}", client.ip(), client.port()));
            program.assert_refused(b"GET / HTTP/1.0\r\n\r\n");
        }
    };
    serve_clients(5);
    scratch.write("upgrade", "");
    wait_until("the end of the old master", || {
        serve_clients(5);
        scratch.path("upgraded").exists()
    });
    serve_clients(5);
    wait_until("the access log", || {
        let log = scratch.read("access.log");
        log.lines().count() == served.len()
    });
    let log = scratch.read("access.log");
    let unseen: Vec<_> = served
        .iter()
        .filter(|client| !log.lines().any(|line| line == **client))
        .collect();
    assert!(unseen.is_empty(), "{unseen:?}\n{log}");
}

/// Writes a Postfix configuration with the services that answer RCPT. Returns its directory.
fn write_postfix_config(scratch: &Scratch) -> String {
    for directory in ["queue", "data"] {
        std::fs::create_dir(scratch.path(directory)).expect("a directory");
    }
    let directory = scratch.path_text(".");
    let directory = directory.trim_end_matches("/.");
    scratch.write("main.cf", &POSTFIX.replace("DIR", directory));
    scratch.write("master.cf", POSTFIX_SERVICES);
    let run = |program: &str, args: &[&str]| {
        let output = std::process::Command::new(program).args(args).output();
        assert_succeeds(&output.expect("postfix (make setup)"));
    };
    run("chown", &["postfix", &scratch.path_text("data")]);
    run("postfix", &["-c", directory, "check"]);
    directory.to_owned()
}

const UPGRADE: &str = include_str!("masters/upgrade.sh");

const POSTFIX: &str = include_str!("masters/postfix.cf");

const POSTFIX_SERVICES: &str = "
10.81.0.1:8443 inet n - n - - smtpd
cleanup unix n - n - 0 cleanup
rewrite unix - - n - - trivial-rewrite
proxymap unix - - n - - proxymap
anvil unix - - n - 1 anvil
postlog unix-dgram n - n - 1 postlogd
";

const DOVECOT: &str = include_str!("masters/dovecot.conf");

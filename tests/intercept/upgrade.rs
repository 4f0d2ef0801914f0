//! Upgrade without loss of `peername intercept`.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::addr::{LISTEN_V4, v4};
use crate::harness::backend::Backend;
use crate::harness::conn::{Conn, End};
use crate::harness::lab::{Host, Lab, Scratch, assert_contains, lossy_text, wait_until};
use crate::harness::peername::{BINARY, Peername, words};
use crate::harness::rig::load::under_load;
use crate::harness::rig::upgrade::{Binary, UpgradeRig};

#[test]
fn upgrades_lose_no_request() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let mut rig = start(&lab, &scratch, &["--workers=2"]);
    let sockets = listening_sockets(&lab.server);
    // A connection of the first process, open until all upgrades are done.
    let kept = Conn::connect(&lab.balancer, LISTEN_V4);
    assert_refuses(&kept);
    let request = || {
        let conn = Conn::connect(&lab.balancer, LISTEN_V4);
        conn.send(&request("close"));
        let (answer, end) = conn.recv_to_end();
        assert_eq!(end, End::Fin);
        assert!(answer.starts_with(b"HTTP/1.1 403"), "{answer:?}");
    };
    under_load(1, request, |load| {
        let broken = [(Binary::Fails, "the new process: ")];
        rig.upgrade_repeatedly(&lab.server, 6, &broken, || load.wait_served(10));
    });
    drop(kept);
    // The sockets of every worker were handed over, with their accept backlogs.
    assert_eq!(listening_sockets(&lab.server), sockets);
    rig.wait_drained();
}

/// A connection that was accepted before the upgrade has its first request answered, with an announcement that the
/// connection ends. One that stays silent does not keep the old process.
#[test]
fn draining_process_answers_the_first_request_of_a_connection() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let mut rig = start(&lab, &scratch, &["--workers=1"]);
    let connect = || Conn::connect(&lab.balancer, LISTEN_V4);
    let (silent, late) = (connect(), connect());
    // The process has accepted both, because it answers a later connection.
    assert_refuses(&connect());
    rig.upgrade(&lab.server).expect("it upgrades");
    rig.processes.wait_logged("replaced; waiting");
    thread::sleep(AFTER_DRAIN_BEGAN);
    late.send(&request("keep-alive"));
    assert_last_answer(&late);
    assert_eq!(silent.recv_to_end(), (Vec::new(), End::Fin));
    rig.wait_drained();
}

/// Between two requests a connection is closed, but not once the head of the next one has begun.
#[test]
fn draining_process_answers_a_request_whose_head_has_begun() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let mut rig = start(&lab, &scratch, &["--workers=1"]);
    let connect = || Conn::connect(&lab.balancer, LISTEN_V4);
    let (idle, begun) = (connect(), connect());
    let request = request("keep-alive");
    let (beginning, rest) = request.split_at(20);
    for conn in [&idle, &begun] {
        conn.send(&request);
        conn.recv_text_until(|text| text.contains("request_id"));
    }
    begun.send(beginning);
    rig.upgrade(&lab.server).expect("it upgrades");
    rig.processes.wait_logged("replaced; waiting");
    assert_eq!(idle.wait_closed().0, End::Fin);
    begun.send(rest);
    assert_last_answer(&begun);
    rig.wait_drained();
}

/// The heads have arrived in part, but the process has read nothing of them when it begins to drain.
#[test]
fn draining_process_answers_requests_whose_heads_are_unread() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let ca = init_authority(&lab, &scratch);
    let args = [&words(INTERCEPT)[..], &[&ca, "--workers=1"]].concat();
    let mut process = Peername::start(&lab.server, &args, &[LISTEN_V4]);
    let request = request("keep-alive");
    let (beginning, rest) = request.split_at(20);
    let connections: [Conn; 8] = std::array::from_fn(|_| Conn::connect(&lab.balancer, LISTEN_V4));
    for conn in &connections {
        conn.send(&request);
        conn.recv_text_until(|text| text.contains("request_id"));
    }
    process.suspend();
    for conn in &connections {
        conn.send(beginning);
    }
    process.signal(Signal::TERM);
    process.signal(Signal::CONT);
    process.wait_logged("waiting for open connections");
    thread::sleep(AFTER_DRAIN_BEGAN);
    for conn in &connections {
        conn.send(rest);
        assert_last_answer(conn);
    }
    process.wait_success(Duration::from_secs(5));
}

/// The new process has opened the file before it was moved, and SIGHUP reaches the old process.
#[test]
fn log_that_is_rotated_during_an_upgrade_is_opened_again() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let log = scratch.path_text("audit.log");
    let rig = start(&lab, &scratch, &["--workers=1", &format!("--log={log}")]);
    rig.install(&lab.server, Binary::Waits);
    rig.signal(Signal::USR2);
    rig.wait_waiting();
    fs::rename(&log, format!("{log}.1")).expect("rename(2)");
    rig.signal(Signal::HUP);
    rig.processes
        .wait_logged("upgraded: the new process serves");
    rig.processes
        .wait_logged("the file of --log was opened again");
    assert_refuses(&Conn::connect(&lab.balancer, LISTEN_V4));
    wait_until("the line of the request", || {
        let lines = fs::read_to_string(&log).expect("the log");
        lines.contains("\"message\":\"request\"")
    });
}

/// The new process reads the policy and the lists. If one is not valid, the old process goes on with those that it has.
#[test]
fn upgrade_reads_policies_and_lists_again() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let policy = scratch.write("policy.rego", "package egress\nallow := false\n");
    let clients = scratch.write("clients", "10.81.0.0/24\n");
    let ca = init_authority(&lab, &scratch);
    let [check, access] = [
        format!("--check=rego:{policy}"),
        format!("--allow-client=@{clients}"),
    ];
    let listen = format!("--listen={LISTEN_V4}");
    let args = ["intercept", &listen, &ca, &check, &access];
    let mut rig = UpgradeRig::start(&lab.server, &args);
    let assert_answered = |code: &str| {
        let conn = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &request("close"));
        let (answer, _) = conn.recv_to_end();
        assert_contains(&lossy_text(&answer), &[&format!("\"code\":\"{code}\"")]);
    };
    assert_answered("denied");
    scratch.write("policy.rego", "package egress\nallow := true if\n");
    let error = rig.upgrade(&lab.server).expect_err("a refusal");
    assert_contains(&error, &["policy.rego:"]);
    assert_answered("denied");
    scratch.write("policy.rego", "package egress\nallow := true\n");
    rig.upgrade(&lab.server).expect("it upgrades");
    // Without a connection: the origin is this host.
    assert_answered("destination_this_host");
    scratch.write("clients", "192.0.2.0/24\n");
    rig.upgrade(&lab.server).expect("it upgrades");
    Conn::assert_refused(&lab.balancer, LISTEN_V4);
}

/// No process, not even the launcher, shows the password in its command line. The new process of an upgrade still has it.
#[test]
fn password_of_the_upstream_proxy_is_masked_and_kept_by_an_upgrade() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let parent = Backend::listen(&lab.balancer, PARENT_PROXY);
    let options = [
        "--upstream-proxy=http://user:secret@10.81.0.2:3128",
        "--allow-destination=10.81.0.0/24",
    ];
    let mut rig = start(&lab, &scratch, &options);
    assert_password_is_masked(&rig);
    rig.upgrade(&lab.server).expect("it upgrades");
    assert_password_is_masked(&rig);
    // A public address, to which only the parent would connect.
    let request = b"GET http://8.8.8.8/ HTTP/1.1\r\nHost: 8.8.8.8\r\n\r\n";
    let _client = Conn::connect_and_send(&lab.balancer, LISTEN_V4, request);
    let forwarded = parent.accept();
    let head = forwarded.recv_text_until(|text| text.contains("\r\n\r\n"));
    // `user:secret` in Base64.
    assert_contains(&head, &["Basic dXNlcjpzZWNyZXQ="]);
}

/// Starts a proxy on [`LISTEN_V4`] with an authority of its own.
fn start(lab: &Lab, scratch: &Scratch, options: &[&str]) -> UpgradeRig {
    let ca = init_authority(lab, scratch);
    let args = [&words(INTERCEPT)[..], &[&ca]].concat();
    UpgradeRig::start(&lab.server, &[&args[..], options].concat())
}

/// Creates an authority; returns the option that names it.
fn init_authority(lab: &Lab, scratch: &Scratch) -> String {
    let ca = format!("--ca={}", scratch.path_text("ca"));
    lab.server.run(BINARY, &["ca", "init", &ca]);
    ca
}

#[track_caller]
fn assert_password_is_masked(rig: &UpgradeRig) {
    let lines = rig.command_lines();
    let is_masked_launcher = |line: &String| {
        line.starts_with("launcher: ") && line.contains("http://***********@10.81.0.2:3128")
    };
    assert!(lines.iter().any(is_masked_launcher), "{lines:?}");
    assert!(!lines.concat().contains("secret"), "{lines:?}");
}

/// The inodes of the sockets that are listening.
fn listening_sockets(host: &Host) -> BTreeSet<String> {
    let listed = host.run("ss", &["-Hltne"]);
    let inodes = listed
        .split_whitespace()
        .filter(|field| field.starts_with("ino:"));
    inodes.map(str::to_owned).collect()
}

fn assert_refuses(conn: &Conn) {
    conn.send(&request("keep-alive"));
    let answer = conn.recv_text_until(|text| text.contains("\r\n\r\n"));
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

/// Asserts that a request is refused, with an announcement that the connection ends.
#[track_caller]
fn assert_last_answer(conn: &Conn) {
    let (answer, end) = conn.recv_to_end();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(
        answer.to_lowercase().contains("\r\nconnection: close\r\n"),
        "{answer}"
    );
    assert_eq!(end, End::Fin);
}

/// A request that is refused because of its destination, so no origin is needed.
fn request(connection: &str) -> Vec<u8> {
    let target = "http://127.0.0.1/";
    format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: {connection}\r\n\r\n").into()
}

const INTERCEPT: &str =
    "intercept --listen=10.81.0.1:8443 --allow-client=10.81.0.0/24 --drain=600s";
const PARENT_PROXY: SocketAddr = v4([10, 81, 0, 2], 3128);
/// Long enough for a drain to close what it does not wait for.
const AFTER_DRAIN_BEGAN: Duration = Duration::from_millis(300);

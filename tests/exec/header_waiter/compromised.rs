//! What a compromised process of the program, which has dropped root, can do by the library's request channel to the header
//! waiter. The process makes the channel's system call itself.

use std::time::{Duration, Instant};

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, Process};
use crate::harness::rig::exec::{NOTIFY, PRELOAD, ProgramRig, v2};

/// Sockets that linger, silent channels and malformed requests: headers in two pieces are completed nevertheless.
#[test]
fn requests_of_one_process_delay_no_client_of_the_others() {
    for child in [LINGERING, SILENT, MALFORMED] {
        let program = start(Lab::without_routes(), child);
        program.process.wait_printed("begun");
        for _ in 0..5 {
            let (client, start) = (fresh_client_v4(), Instant::now());
            let conn = Conn::connect_and_send(&program.lab.balancer, LISTEN_V4, &v2(client)[..20]);
            conn.assert_stays_open(Duration::from_millis(50));
            conn.send(&v2(client)[20..]);
            let (shown, _) = conn.recv_to_end();
            let log = program.process.log();
            assert_eq!(
                String::from_utf8_lossy(&shown),
                client.to_string(),
                "{child}{log}"
            );
            assert!(start.elapsed() < DELAY_LIMIT, "{:?}{log}", start.elapsed());
        }
    }
}

/// A connection is parked for a listener that the process closes. Another process of the host, none of the program, then
/// listens at that address: the supervisor, which is root's, does not connect to it.
#[test]
fn supervisor_connects_to_no_listener_of_others() {
    let lab = Lab::without_routes();
    let other = Process::start(&lab.server, "/usr/bin/python3", &["-uc", OTHER_LISTENER]);
    let program = start(lab, CLAIMING);
    other.wait_printed("listening");
    for line in [
        "completed",
        "closed: another listener's address",
        "closed: no listener of the program",
    ] {
        program.process.wait_printed(line);
    }
    other.wait_printed("no connection");
}

/// The kernel lets a listener of another network namespace have the same address. The connection is parked for one of them.
#[test]
fn connections_are_handed_to_no_listener_of_another_namespace() {
    for (mode, take) in [(PRELOAD, TAKE_BY_REQUEST), (NOTIFY, TAKE_BY_ACCEPT)] {
        let script = format!("{SERVER}{take}{ELSEWHERE}");
        let command = ["/usr/bin/python3", "-uc", &script];
        let program = ProgramRig::with_mode(mode, OPTIONS, &command);
        for line in ["elsewhere: nothing", "here: a connection"] {
            program.process.wait_printed(line);
        }
    }
}

/// In a network namespace of its own, a process can connect from any address, that of a trusted peer as well.
#[test]
fn no_connection_of_another_namespace_is_handed_to_the_program() {
    let script = format!("{TAKE_BY_REQUEST}{INJECTING}");
    let program = start(Lab::without_routes(), &script);
    for line in [
        "of the program's namespace: a connection",
        "of another one: nothing",
    ] {
        program.process.wait_printed(line);
    }
}

/// A process that takes a connection and does not confirm it loses it after a second, and can't confirm it then.
#[test]
fn connection_that_is_not_confirmed_is_handed_to_another() {
    let script = format!("{TAKE_BY_REQUEST}{HOARDING}");
    let program = start(Lab::without_routes(), &script);
    for line in ["at once: nothing", "too late", "later: a connection"] {
        program.process.wait_printed(line);
    }
}

fn start(lab: Lab, child: &str) -> ProgramRig {
    let script = format!("{SERVER}{child}");
    ProgramRig::start_in(lab, OPTIONS, &["/usr/bin/python3", "-uc", &script])
}

const OPTIONS: &[&str] = &["--ports=8443,9000-9009", "--header-timeout=20s"];

/// The parent serves clients. The child is compromised, and runs the script that is appended.
const SERVER: &str = include_str!("compromised/server.py");

/// Sends sockets whose close waits for a reader that does not read: sixteen in one request, which is too many, or one queued
/// behind a request. The sender closes its own descriptors before the header waiter receives them, or exits, which does not
/// wait.
const LINGERING: &str = include_str!("compromised/lingering.py");

/// Keeps as many channels open as it can.
const SILENT: &str = include_str!("compromised/silent.py");

const MALFORMED: &str = include_str!("compromised/malformed.py");

/// Takes a connection that is parked for its listener, by a listener at the same address of a network namespace of its own.
const ELSEWHERE: &str = include_str!("compromised/elsewhere.py");

/// Parks a connection from a network namespace of its own for a listener of the program.
const INJECTING: &str = include_str!("compromised/injecting.py");

const HOARDING: &str = include_str!("compromised/hoarding.py");

const TAKE_BY_REQUEST: &str = r#"
def take(listener):
    waiter = request(b"T", listener)
    waiter.settimeout(10)
    return waiter.recv(1) == b"+"
"#;

const TAKE_BY_ACCEPT: &str = r#"
def take(listener):
    try:
        return listener.accept()
    except BlockingIOError:
        return None
"#;

/// Parks two connections of a listener of its own, which have no client in the table. Each has half of a second header pending
/// when it is parked.
const CLAIMING: &str = include_str!("compromised/claiming.py");

/// Listens as soon as the port is free.
const OTHER_LISTENER: &str = include_str!("compromised/other_listener.py");

/// Far below the header timeout and the time that the sockets linger, far above what a busy machine takes.
const DELAY_LIMIT: Duration = Duration::from_secs(3);

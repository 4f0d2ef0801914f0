//! Attacks by a compromised process of the program, which has dropped root, on the header waiter. The process makes the system
//! call by which the library opens its request channel to the header waiter.

use std::time::{Duration, Instant};

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, Process, python};
use crate::harness::rig::exec::{NOTIFY, PRELOAD, ProgramRig, v2};

/// A child of the program sends sockets that linger, keeps silent channels open, or sends malformed requests, or any number of
/// requests that take long. Clients of the program whose headers come in two pieces are served nevertheless.
#[test]
fn requests_of_one_process_delay_no_client_of_the_others() {
    for child in [LINGERING, SILENT, MALFORMED, SWEEPING] {
        let program = start(Lab::without_routes(), child);
        program.process.wait_printed("begun");
        for _ in 0..5 {
            let (client, start) = (fresh_client_v4(), Instant::now());
            let conn = Conn::connect_and_send(&program.lab.balancer, LISTEN_V4, &v2(client)[..20]);
            conn.assert_stays_open(Duration::from_millis(50));
            conn.send(&v2(client)[20..]);
            let shown = conn.recv_text_to_end();
            let log = program.process.log();
            assert_eq!(shown, client.to_string(), "{child}{log}");
            assert!(start.elapsed() < DELAY_LIMIT, "{:?}{log}", start.elapsed());
        }
    }
}

/// The process parks a connection for its own listener, and closes that listener. Then a process of the host that is not the
/// program's listens at that address. The supervisor, which runs as root, does not connect to it. Each refusal is logged, as is
/// that of a connection parked for another listener.
#[test]
fn supervisor_connects_to_no_listener_of_others() {
    let lab = Lab::without_routes();
    let other = Process::start(&lab.server, "/usr/bin/python3", &["-uc", OTHER_LISTENER]);
    let script = format!("{SERVER}{CLAIMING}");
    let options = [OPTIONS, &["-v"]].concat();
    let program = ProgramRig::start_in(lab, &options, &python(&script));
    other.wait_printed("listening");
    for line in [
        "completed",
        "closed: another listener's address",
        "closed: no listener of the program",
    ] {
        program.process.wait_printed(line);
    }
    other.wait_printed("no connection");
    let refusal = "the program closed its listener";
    program.process.wait_logged_times(refusal, 2);
}

/// Two listeners in different network namespaces can have the same address. A connection that is parked for one is not handed
/// to the other.
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

/// In a network namespace of its own, a process can connect from any address, that of a trusted peer as well. Such a connection
/// can't be parked for a listener of the program.
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

/// A process that takes a connection has to confirm it within a second. After that it can't confirm any more, and another call
/// gets the connection.
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
    ProgramRig::start_in(lab, OPTIONS, &python(&script))
}

const OPTIONS: &[&str] = &["--ports=8443,9000-9009", "--header-timeout=20s"];

/// The parent serves clients. The child is compromised, and runs the script that is appended.
const SERVER: &str = include_str!("compromised/server.py");

/// Sends sockets whose close(2) blocks (SO_LINGER), because their peer does not read: sixteen in one request, which is too
/// many, or one in a second message on the channel of a request. The sender itself does not block: it closes its descriptors
/// while the request holds others, or it exits, which does not wait.
const LINGERING: &str = include_str!("compromised/lingering.py");

/// Keeps as many channels open as it can.
const SILENT: &str = include_str!("compromised/silent.py");

const MALFORMED: &str = include_str!("compromised/malformed.py");

/// Requests that the table be swept, which takes the longer the more sockets are open.
const SWEEPING: &str = include_str!("compromised/sweeping.py");

/// Has a connection parked for its listener, and tries to take it by a listener at the same address in another network
/// namespace.
const ELSEWHERE: &str = include_str!("compromised/elsewhere.py");

/// Makes a connection in a network namespace of its own, and parks it for a listener of the program.
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

/// Parks two connections that its own listener has accepted, with a header that names no client, so that the table has none.
/// Half of a second header is pending then. The first is parked for another listener; the second one's listener is closed
/// afterwards.
const CLAIMING: &str = include_str!("compromised/claiming.py");

/// Listens as soon as the port is free.
const OTHER_LISTENER: &str = include_str!("compromised/other_listener.py");

/// Far below the header timeout and the time that the sockets linger, far above what a busy machine takes.
const DELAY_LIMIT: Duration = Duration::from_secs(3);

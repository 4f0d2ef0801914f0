//! Disturbances around a program, in either mode: the program goes on or ends, and is never left in between.
//! The faults of one mode alone are in `exec/faults.rs` and in `exec/notify/faults.rs`.

use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use peername_sys::process::pidfd;

use crate::harness::addr::{BALANCER_V4, LISTEN_V4, fresh_client_v4};
use crate::harness::conn::{Conn, End};
use crate::harness::lab::{Host, WAIT_LIMIT, python, wait_until};
use crate::harness::rig::exec::{MODES, PRELOAD, ProgramRig, ServerRig, server_pidfd, v2};

/// A server gets a signal every millisecond while headers arrive whole and in pieces. Servers that block in accept(2), and
/// servers that don't, report every client.
#[test]
fn storm_of_signals_loses_no_connection() {
    for mode in MODES {
        for server_args in ["--accept=block --brief", "--accept=level --brief"] {
            let served = ServerRig::with_mode(mode, server_args, &[]);
            let server = server_pidfd(&served.process);
            std::thread::scope(|scope| {
                // The storm ends with this scope, also by panic.
                let (_storm, calm) = mpsc::channel::<()>();
                scope.spawn(move || {
                    let each = Duration::from_millis(1);
                    while calm.recv_timeout(each) == Err(RecvTimeoutError::Timeout) {
                        server.signal(pidfd::Signal::USR1).expect("it lives");
                    }
                });
                for number in 0..60 {
                    let client = fresh_client_v4();
                    let header = v2(client);
                    let split = if number % 3 == 0 { 20 } else { header.len() };
                    let conn = served.connect_and_send(&header[..split]);
                    conn.send(&[&header[split..], b"hi"].concat());
                    served.assert_sees(&conn, client);
                }
            });
        }
    }
}

/// A listener is closed while two headers are incomplete. The header that completes before the listener is opened again gets a
/// reset; the connection whose header completes afterwards is served.
#[test]
fn reopened_listener_serves_waiting_connections() {
    for mode in MODES {
        let served = ServerRig::with_mode(mode, "--accept=rebind --brief", &[]);
        let server = server_pidfd(&served.process);
        let [early, late] = [(); 2].map(|()| fresh_client_v4());
        let [first, second] =
            [early, late].map(|client| connect_with_half_a_header(&served, &v2(client)));
        server.signal(pidfd::Signal::USR2).expect("it lives");
        served.process.wait_printed("closed");
        first.send(&v2(early)[20..]);
        assert_eq!(first.wait_closed().0, End::Reset, "{mode}");
        server.signal(pidfd::Signal::USR2).expect("it lives");
        served.process.wait_printed("bound again");
        second.send(&[&v2(late)[20..], b"hi"].concat());
        served.assert_sees(&second, late);
        served.assert_serves();
    }
}

/// No copy of the listener is open when accept(2) returns: the address can be bound again at once.
#[test]
fn listener_that_is_reopened_at_once_serves_each_client() {
    for mode in MODES {
        let served = ProgramRig::with_mode(mode, &[], REOPENING);
        for _ in 0..60 {
            let client = fresh_client_v4();
            let conn = Conn::connect_and_send(&served.lab.balancer, LISTEN_V4, &v2(client));
            assert_eq!(conn.recv_text_to_end(), client.ip().to_string());
        }
    }
}

/// A firewall blocks the wakeup connection, by which accept(2) learns of a connection whose header came late. Where the
/// firewall rejects, that connection is refused, at once or after five seconds; where it drops, it waits, for half a minute at
/// most. The log says why.
#[test]
fn firewall_against_the_wakeup_is_reported() {
    for mode in MODES {
        let served = ServerRig::with_mode(mode, "--accept=level --brief", &[]);
        let firewall = |verdict| set_firewall(&served, verdict);
        let client = fresh_client_v4();
        firewall("REJECT --reject-with tcp-reset");
        let refused = connect_with_half_a_header(&served, &v2(client));
        refused.send(&[&v2(client)[20..], b"hi"].concat());
        assert_eq!(refused.wait_closed().0, End::Reset, "{mode}");
        served.process.wait_logged("INPUT accept `-i lo`; a server");

        firewall("REJECT --reject-with icmp-host-prohibited");
        let client = fresh_client_v4();
        let unreachable = connect_with_half_a_header(&served, &v2(client));
        unreachable.send(&[&v2(client)[20..], b"hi"].concat());
        assert_eq!(unreachable.wait_closed().0, End::Reset, "{mode}");
        served
            .process
            .wait_logged("so clients are refused: connect(2): No route to host (os error 113) (let the firewall accept");

        firewall("DROP");
        let client = fresh_client_v4();
        let waiting = connect_with_half_a_header(&served, &v2(client));
        waiting.send(&[&v2(client)[20..], b"hi"].concat());
        served
            .process
            .wait_logged("answers no connection of this host");
        served.lab.server.run("iptables", &["-F", "INPUT"]);
        served.assert_sees(&waiting, client);
    }
}

/// Wake-ups fail twice, with more than five seconds between. No client is refused meanwhile, because an earlier wake-up is in the
/// accept backlog.
#[test]
fn isolated_failures_of_wakeups_refuse_no_client() {
    for mode in MODES {
        let options = ["--header-timeout=60s"];
        let served = ServerRig::with_mode(mode, "--accept=level --brief", &options);
        let clients = [(); 3].map(|()| fresh_client_v4());
        let slow = clients.map(|client| connect_with_half_a_header(&served, &v2(client)));
        let server = server_pidfd(&served.process);
        server.signal(pidfd::Signal::STOP).expect("it lives");
        let firewall = "REJECT --reject-with icmp-host-prohibited";
        let stays_open = [300, 5500, 300].map(Duration::from_millis);
        for ((conn, client), time) in slow.iter().zip(clients).zip(stays_open) {
            conn.send(&[&v2(client)[20..], b"hi"].concat());
            conn.assert_stays_open(time);
            set_firewall(&served, firewall);
        }
        served.lab.server.run("iptables", &["-F", "INPUT"]);
        server.signal(pidfd::Signal::CONT).expect("it lives");
        for (conn, client) in slow.iter().zip(clients) {
            served.assert_sees(conn, client);
        }
    }
}

/// The accept backlog is full, so that the wakeup connection is refused only after the listener was closed.
#[test]
fn wakeup_to_a_closed_listener_is_not_refused_by_a_firewall() {
    for mode in MODES {
        let through = ["sh", "-c", SHALLOW_BACKLOG, "sh"];
        let options = ["-v"];
        let server_args = "--accept=rebind --brief";
        let served = ServerRig::with_mode_through(mode, &through, server_args, &options);
        let server = server_pidfd(&served.process);
        let client = fresh_client_v4();
        let slow = connect_with_half_a_header(&served, &v2(client));
        server.signal(pidfd::Signal::STOP).expect("it lives");
        let _queue = [(); 3].map(|()| served.connect_and_send(&v2(fresh_client_v4())));
        slow.send(&v2(client)[20..]);
        slow.assert_stays_open(Duration::from_millis(300));
        server.signal(pidfd::Signal::USR2).expect("it lives");
        server.signal(pidfd::Signal::CONT).expect("it lives");
        assert_eq!(slow.wait_closed().0, End::Reset, "{mode}");
        served
            .process
            .wait_logged("the program closed its listener");
    }
}

/// shutdown(2) of the listener ends the wait in accept(2), and the program stays. A connection with an incomplete header is
/// reset, at the latest when the rest comes. The kernel refuses later connections.
#[test]
fn shut_down_listener_refuses_connections() {
    for mode in MODES {
        let served = ServerRig::with_mode(mode, "--accept=shutdown --brief", &[]);
        let client = fresh_client_v4();
        let waiting = connect_with_half_a_header(&served, &v2(client));
        server_pidfd(&served.process)
            .signal(pidfd::Signal::USR2)
            .expect("it lives");
        served.process.wait_printed("accept: Invalid argument");
        // If the header waiter received the connection after the shutdown, it has reset the connection already.
        if waiting.send_if_open(&v2(client)[20..]) {
            assert_eq!(waiting.wait_closed().0, End::Reset, "{mode}");
        }
        served.lab.balancer.wait_connection_refused(LISTEN_V4);
        assert!(!server_pidfd(&served.process).has_exited());
    }
}

/// While the accept backlog is full, the wakeup connection waits until there is space.
#[test]
fn full_backlog_delays_the_wakeup_only() {
    for mode in MODES {
        let through = ["sh", "-c", SHALLOW_BACKLOG, "sh"];
        let served = ServerRig::with_mode_through(mode, &through, "--accept=level --brief", &[]);
        let server = server_pidfd(&served.process);
        let late = fresh_client_v4();
        let slow = connect_with_half_a_header(&served, &v2(late));
        server.signal(pidfd::Signal::STOP).expect("it lives");
        let queue: Vec<_> = (0..3)
            .map(|_| fresh_client_v4())
            .map(|client| {
                (
                    served.connect_and_send(&[&v2(client)[..], b"hi"].concat()),
                    client,
                )
            })
            .collect();
        slow.send(&[&v2(late)[20..], b"hi"].concat());
        slow.assert_stays_open(Duration::from_millis(300));
        server.signal(pidfd::Signal::CONT).expect("it lives");
        for (conn, client) in queue {
            served.assert_sees(&conn, client);
        }
        served.assert_sees(&slow, late);
    }
}

/// Clients send the rest of their headers and reset before the program accepts. The program still gets these
/// connections, as the kernel would give them, reports their clients, and closes them.
#[test]
fn connection_reset_before_accept_is_accepted_with_its_client() {
    for mode in MODES {
        let served = ProgramRig::with_mode(mode, &[], PYTHON);
        let server = server_pidfd(&served.process);
        let host = &served.lab.server;
        let open = |bytes: &[u8]| Conn::connect_and_send(&served.lab.balancer, LISTEN_V4, bytes);
        let accepted = |client: SocketAddr| {
            let output = format!("accepted {client} with ");
            let descriptors = |line: &str| line.strip_prefix(&output)?.parse::<u32>().ok();
            served.process.wait_line(&output, descriptors)
        };
        let first = fresh_client_v4();
        open(&v2(first)).recv_to_end();
        let before = accepted(first);
        let clients: Vec<_> = (0..10).map(|_| fresh_client_v4()).collect();
        let parked: Vec<_> = clients
            .iter()
            .map(|&client| open(&v2(client)[..20]))
            .collect();
        let later = fresh_client_v4();
        open(&v2(later)).recv_to_end();
        server.signal(pidfd::Signal::STOP).expect("it lives");
        for (conn, client) in parked.iter().zip(&clients) {
            conn.send(&v2(*client)[20..]);
            wait_until("its arrival", || conn.is_all_acknowledged());
        }
        wait_until("the header waiter has read their headers", || {
            unread_from_balancer(host) == vec!["0"; 10]
        });
        parked.into_iter().for_each(Conn::reset);
        wait_until("their resets", || unread_from_balancer(host).is_empty());
        server.signal(pidfd::Signal::CONT).expect("it lives");
        clients.into_iter().for_each(|client| _ = accepted(client));
        let last = fresh_client_v4();
        open(&v2(last)).recv_to_end();
        assert_eq!(accepted(last), before, "{mode}");
    }
}

/// The number of unread bytes of each open connection from the balancer.
fn unread_from_balancer(host: &Host) -> Vec<String> {
    let filter = format!("src {LISTEN_V4} and dst {BALANCER_V4}");
    let output = host.run("ss", &["-Htn", "state", "established", &filter]);
    output
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// When the program is killed, waiting connections are closed and the helpers end.
#[test]
fn killed_program_leaves_nothing() {
    for mode in MODES {
        let mut served = ServerRig::with_mode(mode, "--accept=threads --brief", &[]);
        let waiting = connect_with_half_a_header(&served, &v2(fresh_client_v4()));
        let descendants = pidfd::descendants(served.process.pid());
        let server = server_pidfd(&served.process);
        server.signal(pidfd::Signal::KILL).expect("it lives");
        assert!(served.process.wait_exit(WAIT_LIMIT).is_some());
        let (output, _) = waiting.recv_to_end();
        assert!(output.is_empty(), "{mode}");
        served.lab.balancer.wait_connection_refused(LISTEN_V4);
        assert!(!descendants.is_empty(), "{mode}");
        for pid in descendants {
            wait_ended(pid);
        }
    }
}

/// The header waiter is killed before the first accept(2): slow headers are refused, and complete ones are served.
#[test]
fn helper_killed_at_once_is_contained() {
    let served = ServerRig::with_mode(PRELOAD, "--accept=level --brief", &[]);
    super::kill_header_waiter(&served);
    served
        .connect_and_send(&v2(fresh_client_v4())[..20])
        .wait_reset();
    served.assert_serves();
}

/// The program is process 1, as in a container without an init. A helper that exits would be an orphan, which process 1 has to
/// reap, so no helper may exit before the program. SIGTERM has no effect, as on any process 1 without a handler for it.
#[test]
fn program_may_be_process_1() {
    for mode in MODES {
        let mut served = ServerRig::with_mode(mode, "--accept=edge --brief", &[]);
        let descendants = pidfd::descendants(served.process.pid());
        let ids = status_field(descendants[0], "NSpid");
        assert!(ids.ends_with("\t1"), "{ids}");
        let server = server_pidfd(&served.process);
        server.signal(pidfd::Signal::TERM).expect("it lives");
        for _ in 0..5 {
            let client = fresh_client_v4();
            let slow = connect_with_half_a_header(&served, &v2(client));
            slow.send(&[&v2(client)[20..], b"hi"].concat());
            served.assert_sees(&slow, client);
        }
        let now = pidfd::descendants(served.process.pid());
        assert_eq!(now, descendants, "{mode}");
        for pid in now {
            let state = status_field(pid, "State");
            assert!(!state.starts_with('Z'), "{mode}: {pid} {state}");
        }
        server.signal(pidfd::Signal::KILL).expect("it lives");
        assert!(served.process.wait_exit(WAIT_LIMIT).is_some());
        for pid in descendants {
            wait_ended(pid);
        }
    }
}

fn wait_ended(pid: u32) {
    let path = format!("/proc/{pid}");
    wait_until("its end", || !std::fs::exists(&path).expect("/proc"));
}

fn status_field(pid: u32, field: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .expect("the field")
        .trim()
        .to_owned()
}

/// Opens a connection with an incomplete header, and asserts that a later connection is served. By then the header waiter has
/// the first one.
fn connect_with_half_a_header(served: &ServerRig, header: &[u8]) -> Conn {
    let conn = served.connect_and_send(&header[..20]);
    served.assert_serves();
    conn
}

/// Lets the firewall of the server's host do this with wakeup connections.
fn set_firewall(served: &ServerRig, verdict: &str) {
    let rule = format!("-i lo -p tcp --dport 8443 -j {verdict}");
    let set = format!("iptables -F INPUT; iptables -A INPUT {rule}");
    served.lab.server.run("sh", &["-ec", &set]);
}

/// Starts a program whose listeners have an accept backlog of two.
const SHALLOW_BACKLOG: &str = "echo 2 >/proc/sys/net/core/somaxconn && exec \"$@\"";
/// Prints each client, and the number of open descriptors once its connection is closed.
const PYTHON: &[&str] = &python(include_str!("disturbances/python.py"));
const REOPENING: &[&str] = &python(include_str!("disturbances/reopening.py"));

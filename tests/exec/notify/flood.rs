//! Many connections that the supervisor refuses, at one listener.

use std::net::SocketAddr;

use peername_sys::process::limits;
use rustix::process::{Signal, kill_process, setpriority_process};

use crate::harness::addr::{fresh_client_v4, v4};
use crate::harness::conn::Conn;
use crate::harness::lab::python;
use crate::harness::rig::exec_notify::NotifyRig;
use crate::harness::rig::proxy::header_for;

/// The supervisor answers an accept(2) at another listener before it has refused all of them.
#[test]
fn refused_connections_hold_up_no_other_listener() {
    limits::raise_open_files().expect("descriptors for the connections");
    let exec = NotifyRig::start(&[], FLOODED);
    let flooded = v4([127, 0, 0, 1], 8444);
    let ask = || exec.connect_and_send(&header_for(fresh_client_v4()));
    // Now both threads of the server have called accept(2).
    Conn::assert_reset(&exec.lab.server, flooded, b"x");
    assert_eq!(ask().recv_to_end().0, b"0");
    let supervisor = exec.supervisor_pid();
    kill_process(supervisor, Signal::STOP).expect("kill");
    let _refused = connect_untrusted(&exec, flooded, 3000);
    let asked = ask();
    // Lowers the supervisor's priority, so that the server reads the number of waiting connections before they are refused.
    setpriority_process(Some(supervisor), 19).expect("setpriority(2)");
    kill_process(supervisor, Signal::CONT).expect("kill");
    let answer = asked.recv_text_to_end();
    let waiting: usize = answer.parse().expect("a number");
    assert!(waiting > 0, "all were refused first");
}

/// accept(2) returns the connection behind the refused ones, and not EAGAIN: a program with edge-triggered epoll (EPOLLET)
/// would not call it again.
#[test]
fn nonblocking_accept_does_not_miss_a_connection_behind_refused_ones() {
    let exec = NotifyRig::start(&[], NONBLOCKING);
    let _refused = connect_untrusted(&exec, v4([127, 0, 0, 1], 8443), 300);
    let client = fresh_client_v4();
    let _conn = exec.connect_and_send(&header_for(client));
    exec.process.signal(Signal::USR1);
    exec.process.wait_printed(&format!("accepted {client}"));
    exec.process.wait_printed("no more");
}

/// Opens connections from this host, which is not trusted.
fn connect_untrusted(exec: &NotifyRig, to: SocketAddr, count: usize) -> Vec<Conn> {
    let open = || {
        let conn = Conn::try_connect(&exec.lab.server, to)?;
        conn.send_if_open(b"x").then_some(conn)
    };
    (0..count).filter_map(|_| open()).collect()
}

/// Two threads accept, one at each of two ports. Each client of the first one is told how many connections wait at the other.
const FLOODED: &[&str] = &python(include_str!("flood/flooded.py"));
/// After SIGUSR1, calls accept(2) twice on a non-blocking listener.
const NONBLOCKING: &[&str] = &python(include_str!("flood/nonblocking.py"));

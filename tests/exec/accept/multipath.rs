//! Listeners of MPTCP: the kernel gives the sockets that they accept one SO_COOKIE, the listener's own.

use std::time::Duration;

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::wait_until;
use crate::harness::rig::exec::{MODES, ServerRig, v2};
use crate::harness::rig::load::number_from_env;

/// 400 clients, or as many as `PEERNAME_TEST_CHURN` says: more than the table has slots, so that entries are freed, too.
#[test]
fn clients_of_both_protocols_are_not_confused() {
    for mode in MODES {
        let served = start(mode, "--accept=edge --multipath --brief");
        for number in 0..number_from_env("PEERNAME_TEST_CHURN", 400) {
            let client = fresh_client_v4();
            let header = v2(client);
            let split = if number % 16 == 0 { 20 } else { header.len() };
            let conn = connect(&served, number);
            conn.send(&header[..split]);
            conn.send(&header[split..]);
            conn.send(b"hi");
            served.assert_sees(&conn, client);
        }
    }
}

/// The client is seen on a duplicate, in a forked child, in an executed program and on a passed descriptor.
#[test]
fn multipath_client_is_seen_in_other_processes() {
    for mode in MODES {
        let served = start(mode, "--accept=block --multipath");
        for number in 0..4 {
            let client = fresh_client_v4();
            let conn = connect(&served, number);
            conn.send(&[&v2(client)[..], b"hi"].concat());
            served.assert_sees(&conn, client);
        }
    }
}

/// A sweep of the table frees the slots of closed connections only.
#[test]
fn full_table_refuses_multipath_clients_until_others_close() {
    for mode in MODES {
        let served = start(mode, "--accept=level --multipath --hold");
        // The server keeps the connections that it answers.
        let connect_held = || {
            let client = fresh_client_v4();
            let conn = Conn::connect_multipath(&served.lab.balancer, LISTEN_V4);
            conn.send(&[&v2(client)[..], b"hi"].concat());
            let answered = conn.is_answered_after(Duration::from_secs(5));
            if answered {
                let report = String::from_utf8(conn.recv_some()).expect("text");
                served.assert_report(&report, client);
            }
            (conn, answered)
        };
        let conns: Vec<_> = (0..80).map(|_| connect_held()).collect();
        let held = conns.iter().filter(|(_, answered)| *answered).count();
        assert_eq!(held, 64, "{mode}: {}", served.process.log());
        drop(conns);
        wait_until("a free slot", || connect_held().1);
    }
}

fn start(mode: &str, server_args: &str) -> ServerRig {
    ServerRig::with_mode(mode, server_args, &["--max-connections=64"])
}

/// Every third client connects by TCP.
fn connect(served: &ServerRig, number: usize) -> Conn {
    match number % 3 {
        0 => Conn::connect(&served.lab.balancer, LISTEN_V4),
        _ => Conn::connect_multipath(&served.lab.balancer, LISTEN_V4),
    }
}

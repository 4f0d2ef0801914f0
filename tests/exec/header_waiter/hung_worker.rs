//! A server whose workers have a listener each at one address (SO_REUSEPORT), as nginx with `reuseport`, and one of them hangs.

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{python, wait_until};
use crate::harness::rig::exec::{MODES, ProgramRig, v2};

/// The kernel spreads wake-up connections over the listeners, so a quarter of them waits in the backlog of the worker that hangs.
/// They are replaced, and each client with a slow header is served by another worker.
#[test]
fn clients_with_slow_headers_are_served_beside_a_worker_that_hangs() {
    for mode in MODES {
        let served = ProgramRig::with_mode(mode, &[], &python(WORKERS));
        let balancer = &served.lab.balancer;
        let slow: Vec<_> = (0..24)
            .map(|_| {
                let client = fresh_client_v4();
                let conn = Conn::connect_and_send(balancer, LISTEN_V4, &v2(client)[..20]);
                wait_until("its arrival", || conn.is_all_acknowledged());
                (conn, client)
            })
            .collect();
        let first = fresh_client_v4();
        let conn = Conn::connect_and_send(balancer, LISTEN_V4, &v2(first));
        assert_eq!(conn.recv_text_to_end(), first.to_string());
        served.process.wait_printed("hangs");
        for (conn, client) in &slow {
            conn.send(&v2(*client)[20..]);
        }
        for (conn, client) in slow {
            assert_eq!(conn.recv_text_to_end(), client.to_string(), "{mode}");
        }
    }
}

/// Four workers tell each client its address. The one that serves the first client hangs then.
const WORKERS: &str = include_str!("workers.py");

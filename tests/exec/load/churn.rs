//! Churn: many connections through the table; no client is ever confused with another. `PEERNAME_TEST_CHURN` says how
//! many: 1000000 take minutes.

use std::net::SocketAddr;
use std::thread;

use crate::harness::addr::v4;
use crate::harness::rig::exec::{MODES, ServerRig, v2};
use crate::harness::rig::load::number_from_env;

/// The table has 512 slots, so that it is filled and swept again and again. Descriptors are reused at once.
#[test]
fn churn_confuses_no_clients() {
    for mode in MODES {
        let served =
            ServerRig::with_mode(mode, "--accept=edge --brief", &["--max-connections=512"]);
        assert_churn(&served, number_from_env("PEERNAME_TEST_CHURN", 5_000));
    }
}

/// The default table has 65536 slots, so 5000 connections use none of them twice.
#[test]
fn churn_confuses_no_clients_in_the_default_table() {
    assert_churn(
        &ServerRig::new("--accept=edge --brief", &[]),
        number_from_env("PEERNAME_TEST_CHURN", 5_000),
    );
}

/// Makes `count` connections, four at a time, and verifies each.
pub(crate) fn assert_churn(served: &ServerRig, count: usize) {
    let count = u32::try_from(count).expect("a number of 32 bits");
    served
        .lab
        .balancer
        .sysctl("net.ipv4.ip_local_port_range", "1024 65000");
    thread::scope(|scope| {
        for worker in 0..4_u32 {
            scope.spawn(move || {
                for number in 0..count / 4 {
                    verify_one(served, worker * (count / 4) + number);
                }
            });
        }
    });
}

fn verify_one(served: &ServerRig, number: u32) {
    let [_, a, b, c] = number.to_be_bytes();
    let client: SocketAddr = v4(
        [198, a, b, c],
        u16::try_from(number % 60_000).expect("small") + 1,
    );
    let header = v2(client);
    // One in sixteen comes in two pieces.
    let split = if number.is_multiple_of(16) {
        20
    } else {
        header.len()
    };
    let conn = served.connect_and_send(&header[..split]);
    conn.send(&header[split..]);
    conn.send(b"hi");
    let output = String::from_utf8(conn.recv_some()).expect("text");
    served.assert_report(&output, client);
    conn.reset();
}

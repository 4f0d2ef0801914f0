//! A thousand silent clients with outstanding headers delay no other client.

use std::time::{Duration, Instant};

use crate::harness::addr::fresh_client_v4;
use crate::harness::rig::exec::{NOTIFY, PRELOAD, ServerRig, v2};

#[test]
fn thousand_silent_clients_delay_no_other_client() {
    assert_not_delayed(PRELOAD, "--accept=level --brief");
}

#[test]
fn thousand_silent_clients_delay_no_other_client_under_notify() {
    assert_not_delayed(NOTIFY, "--accept=threads --brief");
}

/// Asserts that connections beside the silent clients take at most twice as long as alone, or what the scheduler alone may add.
/// When the silent clients send their headers at last, each is seen with its own address.
fn assert_not_delayed(mode: &str, server_args: &str) {
    peername_sys::process::limits::raise_open_files()
        .expect("descriptors for a thousand connections");
    let served = ServerRig::with_mode(mode, server_args, &["--header-timeout=60s"]);
    measure_round(&served);
    let before = measure_round(&served);
    let clients: Vec<_> = (0..CROWD).map(|_| fresh_client_v4()).collect();
    let headers: Vec<_> = clients.iter().map(|&client| v2(client)).collect();
    let open = |header: &Vec<u8>| served.connect_and_send(&header[..15]);
    let silent: Vec<_> = headers.iter().map(open).collect();
    let beside = measure_round(&served);
    println!("{mode}: {before:?} alone, {beside:?} beside {CROWD} silent clients");
    assert!(
        beside.p50 <= (before.p50 * 2).max(WAKE_UP_DELAY)
            && beside.p99 <= (before.p99 * 2).max(BUSY_MACHINE_DELAY),
        "{mode}: {before:?} alone, {beside:?} beside {CROWD}"
    );
    for (conn, header) in silent.iter().zip(&headers) {
        conn.send(&header[15..]);
        conn.send(b"hi");
    }
    for (conn, client) in silent.iter().zip(clients) {
        served.assert_sees(conn, client);
    }
}

#[derive(Debug)]
struct Times {
    p50: Duration,
    p99: Duration,
}

/// The times of one connection after another, from its SYN to the server's answer.
fn measure_round(served: &ServerRig) -> Times {
    let mut times: Vec<_> = (0..ROUND).map(|_| measure_one(served)).collect();
    times.sort_unstable();
    let [p50, p99] = [50, 99].map(|percent| times[ROUND * percent / 100]);
    Times { p50, p99 }
}

fn measure_one(served: &ServerRig) -> Duration {
    let client = fresh_client_v4();
    let start = Instant::now();
    let output = served.report_for(&v2(client));
    let took = start.elapsed();
    served.assert_report(&output, client);
    took
}

const CROWD: usize = 1000;
const ROUND: usize = 200;

/// What the scheduler alone may add on a busy machine: to every connection, and to the slowest two of a
/// round. Waiting for one silent client costs seconds.
const WAKE_UP_DELAY: Duration = Duration::from_millis(5);
const BUSY_MACHINE_DELAY: Duration = Duration::from_millis(250);

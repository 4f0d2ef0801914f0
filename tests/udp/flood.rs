//! Eviction: a flood of clients without replies takes nothing from established sessions.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::harness::addr::{LISTEN_V4, fresh_client_v4, v4};
use crate::harness::rig::udp::{UdpRig, datagram_header_for};

/// The limits are so low that the flood reaches them at once.
#[test]
fn flood_evicts_no_established_session() {
    let few_descriptors = ["prlimit", "--nofile=700:700"];
    let args = ["--workers=2", "--max-sessions=500"];
    assert_withstands_flood(UdpRig::start_through(&few_descriptors, &args), 500);
}

/// With the default of 4096 sessions per balancer.
#[test]
fn flood_evicts_no_established_session_by_default() {
    let descriptors = ["prlimit", "--nofile=5000:5000"];
    assert_withstands_flood(UdpRig::start_through(&descriptors, &["--workers=2"]), 4096);
}

/// With DNS, a table full of answered clients is the usual case. If the new clients that come at once are at most an eighth of
/// the table's size, all of them get their replies. If more come at once, all of their requests still reach the backend.
#[test]
fn full_table_evicts_for_new_clients() {
    let rig = UdpRig::new(&["--workers=1", "--max-sessions-per-balancer=64"]);
    (0..64).for_each(|_| rig.round_trip(fresh_client_v4()));
    let send_at_once = |new: usize| -> HashSet<SocketAddr> {
        let clients: HashSet<_> = (0..new).map(|_| fresh_client_v4()).collect();
        for client in &clients {
            rig.send_from_balancer(&[&datagram_header_for(*client), b"new"]);
        }
        let received: HashSet<_> = (0..new).map(|_| rig.backend_v4.recv().1).collect();
        assert_eq!(received, clients);
        clients
    };
    for client in send_at_once(8) {
        rig.assert_reply(client, b"answer");
    }
    send_at_once(64);
}

/// 100,000 distinct clients in 10 s against 50 that are answered: no reply is lost, and neither sessions nor
/// descriptors exceed their limits.
fn assert_withstands_flood(mut rig: UdpRig, sessions: usize) {
    let clients: Vec<SocketAddr> = (0..50).map(|_| fresh_client_v4()).collect();
    clients.iter().for_each(|client| rig.round_trip(*client));
    rig.proxy.wait_started();
    let idle = rig.proxy.count_fds() - clients.len();
    let flood = rig.add_balancer_socket();
    let flooder = fresh_client_v4();
    let start = Instant::now();
    let mut max_fds = 0;
    for (round, client) in (0..FLOOD).step_by(100).zip(clients.iter().cycle()) {
        rig.send_from_balancer(&[&datagram_header_for(*client), &round.to_be_bytes()]);
        wait_request(&rig, *client, &round.to_be_bytes());
        for n in round..round + 100 {
            let [_, a, b, c] = n.to_be_bytes();
            let stranger = v4([100, 64 + a, b, c], 1000 + (n % 50_000) as u16);
            flood.send(LISTEN_V4, &[&datagram_header_for(stranger), b"flood"]);
        }
        // A marker: once the backend has it, this round's flood has passed, and the reply comes after that.
        let last = [round + 100, 0xffff].map(u32::to_be_bytes).concat();
        flood.send(LISTEN_V4, &[&datagram_header_for(flooder), &last]);
        wait_request(&rig, flooder, &last);
        rig.assert_reply(*client, b"answer");
        max_fds = max_fds.max(rig.proxy.count_fds());
        let due = Duration::from_millis(u64::from(round) / 10);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
    let elapsed = start.elapsed();
    // Each of two workers opens a new session's socket before it closes that of the evicted one.
    let bound = idle + sessions + 2;
    assert!(max_fds <= bound, "{max_fds} descriptors, {idle} before");
    // Their sessions are still open, although the clients have sent nothing since.
    for client in clients {
        rig.assert_reply(client, b"still here");
    }
    let memory = rig.proxy.resident_kib();
    let totals = rig.stop();
    // Fewer would mean that the flood was lost on its path, and proved nothing.
    let sessions_begun = totals["udp_sessions"].as_u64().expect("a number");
    assert!(sessions_begun > u64::from(FLOOD), "{totals}");
    println!(
        "{FLOOD} clients in {elapsed:?}: at most {max_fds} descriptors, {memory} KiB, {totals}"
    );
}

/// Waits until this request has come to the backend, behind all that the flood has sent to it.
#[track_caller]
fn wait_request(rig: &UdpRig, client: SocketAddr, question: &[u8]) {
    loop {
        let (bytes, from) = rig.backend_v4.recv();
        if bytes == question {
            assert_eq!(from, client, "the port is the client's own");
            return;
        }
    }
}

const FLOOD: u32 = 100_000;

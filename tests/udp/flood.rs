//! A flood of clients that nobody answers takes nothing from those that are answered.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::harness::addr::{LISTEN_V4, fresh_client_v4, v4};
use crate::harness::rig::udp::{UdpRig, datagram_header_for};

/// With bounds that are reached at once.
#[test]
fn established_sessions_keep_their_answers() {
    let few_descriptors = ["prlimit", "--nofile=700:700"];
    let args = ["--workers=2", "--max-sessions=500"];
    withstands(UdpRig::start_through(&few_descriptors, &args), 500);
}

/// With the default of 4096 sessions a balancer.
#[test]
fn established_sessions_keep_their_answers_by_default() {
    let descriptors = ["prlimit", "--nofile=5000:5000"];
    withstands(UdpRig::start_through(&descriptors, &["--workers=2"]), 4096);
}

/// A table full of clients that have been answered is the usual thing with DNS. New ones that come together have
/// their answers; and of more than that, at least what they sent gets through.
#[test]
fn new_clients_come_through_when_there_is_no_room() {
    let rig = UdpRig::new(&["--workers=1", "--max-sessions-per-balancer=64"]);
    (0..64).for_each(|_| rig.round_trip(fresh_client_v4()));
    let together = |new: usize| -> HashSet<SocketAddr> {
        let clients: HashSet<_> = (0..new).map(|_| fresh_client_v4()).collect();
        for client in &clients {
            rig.send_from_balancer(&[&datagram_header_for(*client), b"new"]);
        }
        let came = (0..new).map(|_| rig.backend_v4.recv());
        let came: HashSet<_> = came.map(|(_, client)| client).collect();
        assert_eq!(came, clients);
        clients
    };
    for client in together(8) {
        rig.backend_v4.send(client, &[b"answer"]);
        rig.balancer.expect_datagram(b"answer", LISTEN_V4);
    }
    together(64);
}

/// 100,000 distinct clients in 10 s against 50 that talk: no answer is lost, and neither sessions nor
/// descriptors go beyond their bounds.
fn withstands(mut rig: UdpRig, sessions: usize) {
    let clients: Vec<SocketAddr> = (0..50).map(|_| fresh_client_v4()).collect();
    clients.iter().for_each(|client| rig.round_trip(*client));
    rig.proxy.wait_started();
    let idle = rig.proxy.count_fds() - clients.len();
    let flood = rig.add_balancer_socket();
    let flooder = fresh_client_v4();
    let start = Instant::now();
    let mut most = 0;
    for (round, client) in (0..FLOOD).step_by(100).zip(clients.iter().cycle()) {
        rig.send_from_balancer(&[&datagram_header_for(*client), &round.to_be_bytes()]);
        asked(&rig, *client, &round.to_be_bytes());
        for n in round..round + 100 {
            let [_, a, b, c] = n.to_be_bytes();
            let stranger = v4([100, 64 + a, b, c], 1000 + (n % 50_000) as u16);
            flood.send(LISTEN_V4, &[&datagram_header_for(stranger), b"flood"]);
        }
        // The answer comes when the flood has passed.
        let last = [round + 100, 0xffff].map(u32::to_be_bytes).concat();
        flood.send(LISTEN_V4, &[&datagram_header_for(flooder), &last]);
        asked(&rig, flooder, &last);
        rig.backend_v4.send(*client, &[b"answer"]);
        rig.balancer.expect_datagram(b"answer", LISTEN_V4);
        most = most.max(rig.proxy.count_fds());
        let due = Duration::from_millis(u64::from(round) / 10);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
    let elapsed = start.elapsed();
    // Either worker opens a new session's socket before it closes that of the one that has to go.
    let bound = idle + sessions + 2;
    assert!(most <= bound, "{most} descriptors, {idle} before");
    // Each is still open, without having said anything.
    for client in clients {
        rig.backend_v4.send(client, &[b"still here"]);
        rig.balancer.expect_datagram(b"still here", LISTEN_V4);
    }
    let memory = rig.proxy.resident_kib();
    let totals = rig.stop();
    // Or the flood was lost on its way and proved nothing.
    let began = totals["udp_sessions"].as_u64().expect("a number");
    assert!(began > u64::from(FLOOD), "{totals}");
    println!("{FLOOD} clients in {elapsed:?}: at most {most} descriptors, {memory} KiB, {totals}");
}

/// Waits until this question has come to the backend, behind all that the flood has sent it.
#[track_caller]
fn asked(rig: &UdpRig, client: SocketAddr, question: &[u8]) {
    loop {
        let (bytes, from) = rig.backend_v4.recv();
        if bytes == question {
            assert_eq!(from, client, "the port is the client's own");
            return;
        }
    }
}

const FLOOD: u32 = 100_000;

//! A flood of clients that nobody answers takes nothing from those that are answered.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::rig::{Rig, header_of};
use crate::addr::{someone_v4, v4};

/// 100 000 distinct clients in 10 s against 50 that talk: no answer is lost, and neither sessions nor
/// descriptors go beyond their bounds.
#[test]
fn established_sessions_keep_their_answers() {
    let rig = Rig::through(
        &["prlimit", "--nofile=700:700"],
        &["--workers=2", "--max-sessions=500"],
    );
    let clients: Vec<SocketAddr> = (0..50).map(|_| someone_v4()).collect();
    clients.iter().for_each(|client| rig.ask(*client));
    let idle = rig.proxy.descriptors();
    let flood = rig.another_balancer_socket();
    let flooder = someone_v4();
    let start = Instant::now();
    let mut most = 0;
    for (round, ten) in (0..100_000_u32)
        .step_by(100)
        .zip((0..clients.len()).cycle())
    {
        let client = clients[ten];
        rig.send(&[&header_of(client), &round.to_be_bytes()]);
        assert!(asked(&rig, client, &round.to_be_bytes()));
        for n in round..round + 100 {
            let [_, a, b, c] = n.to_be_bytes();
            let client = v4([100, 64 + a, b, c], 1000 + (n % 50_000) as u16);
            flood.send(crate::addr::LISTEN_V4, &[&header_of(client), b"flood"]);
        }
        // The answer comes when the flood has passed.
        let last = [round + 100, 0xffff].map(u32::to_be_bytes).concat();
        flood.send(crate::addr::LISTEN_V4, &[&header_of(flooder), &last]);
        assert!(asked(&rig, flooder, &last));
        rig.v4.send(client, &[b"answer"]);
        rig.balancer.expect(b"answer", crate::addr::LISTEN_V4);
        most = most.max(rig.proxy.descriptors());
        let due = Duration::from_millis(u64::from(round) / 10);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
    assert!(most <= idle + 500, "{most} descriptors, {idle} before");
    // Each is still open, without having said anything.
    for client in clients {
        rig.v4.send(client, &[b"still here"]);
        rig.balancer.expect(b"still here", crate::addr::LISTEN_V4);
    }
}

/// Waits until this question has come to the backend, behind all that the flood has sent it.
fn asked(rig: &Rig, client: SocketAddr, question: &[u8]) -> bool {
    loop {
        let Some((bytes, from)) = rig.v4.recv_within(Duration::from_secs(2)) else {
            return false;
        };
        if bytes == question {
            assert_eq!(from, client, "the port is the client's own");
            return true;
        }
    }
}

//! Every answer goes to whoever asked: two balancers that have the same clients, at two listeners.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::rig::{Rig, header_of};
use crate::addr::{BALANCER_V4, LISTEN_V4, v4};
use crate::datagram::Datagrams;

/// 100 000 requests, or as many as PEERNAME_TEST_DATAGRAMS says. Each carries its number, the number
/// of its way in and its client's; a backend sends them back.
#[test]
fn nothing_is_misdelivered() {
    let second = v4([10, 81, 0, 1], 8444);
    let rig = Rig::new(&[&format!("--listen={second}"), "--workers=2"]);
    rig.lab.balancer.ip("address add 10.81.0.3/24 dev lan");
    let ways: Vec<(Datagrams, SocketAddr)> = [BALANCER_V4, v4([10, 81, 0, 3], 0).ip()]
        .into_iter()
        .flat_map(|ip| [(ip, LISTEN_V4), (ip, second)])
        .map(|(ip, to)| {
            let from = SocketAddr::new(ip, 0);
            (Datagrams::bind(&rig.lab.balancer, from), to)
        })
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    let echo = echo(rig.v4.socket(), &stop);
    let clients: Vec<SocketAddr> = (0..500)
        .map(|n| v4([198, 51, 100, (n % 250) as u8 + 1], 20_000 + n))
        .collect();
    let wanted = std::env::var("PEERNAME_TEST_DATAGRAMS")
        .map_or(100_000, |count| count.parse().expect("a number"));
    let mut answered = 0_u32;
    let mut asked = 0_u32;
    while asked < wanted {
        // A window that the sockets' buffers hold, so that what is missing was lost by the proxy.
        for _ in 0..WINDOW {
            let way = asked % 4;
            let client = (asked / 4) % 500;
            let (balancer, to) = &ways[way as usize];
            let question = [asked.to_be_bytes(), way.to_be_bytes(), client.to_be_bytes()].concat();
            balancer.send(*to, &[&header_of(clients[client as usize]), &question]);
            asked += 1;
        }
        let mut waiting: HashMap<u32, ()> = (asked - WINDOW..asked).map(|n| (n, ())).collect();
        for (way, (balancer, to)) in ways.iter().enumerate() {
            for _ in 0..WINDOW / 4 {
                let Some((bytes, from)) = balancer.recv_within(Duration::from_secs(2)) else {
                    break;
                };
                let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
                let (question, asked_way, client) = (number(0), number(4), number(8));
                assert_eq!(
                    asked_way as usize, way,
                    "an answer to another balancer's question"
                );
                assert_eq!(from, *to, "an answer from another listener");
                assert!(waiting.remove(&question).is_some(), "twice, or late");
                let ip = &bytes[12..16];
                let std::net::IpAddr::V4(expected) = clients[client as usize].ip() else {
                    unreachable!("an IPv4 client")
                };
                assert_eq!(ip, expected.octets(), "the backend saw another client");
                answered += 1;
            }
        }
        assert!(waiting.is_empty(), "{} of {WINDOW} lost", waiting.len());
    }
    stop.store(true, Ordering::Relaxed);
    echo.join().expect("the backend");
    assert_eq!(answered, asked);
}

/// Sends back what comes, and behind it the address it saw.
fn echo(socket: &UdpSocket, stop: &Arc<AtomicBool>) -> thread::JoinHandle<()> {
    let (socket, stop) = (socket.try_clone().expect("dup"), Arc::clone(stop));
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .expect("SO_RCVTIMEO");
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while !stop.load(Ordering::Relaxed) {
            let Ok((n, from)) = socket.recv_from(&mut buffer) else {
                continue;
            };
            let std::net::IpAddr::V4(ip) = from.ip() else {
                continue;
            };
            let answer = [&buffer[..n], &ip.octets()].concat();
            socket.send_to(&answer, from).expect("send");
        }
    })
}

const WINDOW: u32 = 80;

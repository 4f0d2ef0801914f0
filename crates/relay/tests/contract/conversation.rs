//! What carries small messages for a while is received otherwise: nobody can tell.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use peername_relay::{End, Limits, Method, Side, Tally};
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::fill;
use crate::lab::{
    Lab, METHODS, Report, block_on, connected, impatient, pair, pattern, read_to_end,
    read_to_reset, report, reset, send_and_finish,
};

/// Whatever comes after it, and as often as it comes again: each time it takes twice as many messages to begin.
#[test]
fn a_conversation_is_left_and_begun_again() {
    for method in METHODS {
        let lab = Lab::new(method, Limits::default());
        let (up, down) = (pattern(4 << 20), pattern(3 << 20));
        for _ in 0..3 {
            converse(&lab, 200);
            thread::scope(|scope| {
                scope.spawn(|| write(&lab.client, &up));
                scope.spawn(|| write(&lab.backend, &down));
                let at_backend = scope.spawn(|| read(&lab.backend, up.len()) == up);
                assert!(read(&lab.client, down.len()) == down, "{method:?}");
                assert!(at_backend.join().unwrap(), "{method:?}");
            });
        }
        converse(&lab, 200);
        send_and_finish(&lab.client, b"bye");
        assert_eq!(read_to_end(&lab.backend), b"bye");
        send_and_finish(&lab.backend, b"and you");
        assert_eq!(read_to_end(&lab.client), b"and you");
        let report = lab.report();
        assert_eq!(report.end, End::Finished(Side::Downstream), "{method:?}");
        let talk: u64 = (0..200).map(|n| n % 50 * 20 + 1).sum();
        let carried = (report.tally.to_upstream, report.tally.to_downstream);
        let (up, down) = (up.len() as u64, down.len() as u64);
        assert_eq!(carried, (4 * talk + 3 * up + 3, 4 * talk + 3 * down + 7));
    }
}

#[test]
fn a_reset_in_a_conversation_arrives_as_one() {
    for method in METHODS {
        let lab = Lab::new(method, Limits::default());
        converse(&lab, 50);
        write(&lab.backend, b"last words");
        assert_eq!(read(&lab.client, 10), b"last words");
        let (rest, report) = lab.reset(Side::Upstream);
        assert_eq!(rest, b"", "{method:?}");
        assert_eq!(report.end, End::Reset(Side::Upstream), "{method:?}");
    }
}

/// However what comes from the other side falls in with it: no FIN is made up.
#[test]
fn a_reset_while_the_other_side_talks_is_no_end() {
    for method in METHODS {
        for _ in 0..50 {
            let lab = Lab::new(method, Limits::default());
            converse(&lab, 2);
            write(&lab.backend, b"what");
            let (rest, report) = lab.reset(Side::Downstream);
            assert_eq!(rest, b"", "{method:?}");
            assert_eq!(report.end, End::Reset(Side::Downstream), "{method:?}");
        }
    }
}

/// There is room for 64 KiB, and all send more than that at once.
#[test]
fn more_talk_at_once_than_there_is_room_for() {
    peername_sys::process::limits::raise_open_files().unwrap();
    for method in METHODS {
        let (outer, inner): (Vec<_>, Vec<_>) = (0..100).map(|_| ends()).unzip();
        let relays = thread::spawn(move || {
            block_on(async move {
                let mut relays = JoinSet::new();
                for (downstream, upstream) in inner {
                    let pair = pair(downstream, upstream);
                    relays.spawn(report(pair, method, Limits::default()));
                }
                relays.join_all().await
            })
        });
        let said = pattern(1000);
        for _ in 0..20 {
            for _ in 0..5 {
                outer.iter().for_each(|(client, _)| write(client, &said));
            }
            for (_, backend) in &outer {
                assert!(read(backend, 5000) == said.repeat(5), "{method:?}");
            }
        }
        drop(outer);
        let carried = relays.join().unwrap();
        let all = |report: &Report| report.tally.to_upstream == 100_000;
        assert!(carried.iter().all(all), "{method:?}");
    }
}

/// More is told at once than the ring's list has places for.
#[test]
fn all_conversations_end_at_once() {
    peername_sys::process::limits::raise_open_files().unwrap();
    let (outer, inner): (Vec<_>, Vec<_>) = (0..1000).map(|_| ends()).unzip();
    let (clients, backends): (Vec<_>, Vec<_>) = outer.into_iter().unzip();
    let (begun, ended) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            block_on(async {
                let mut relays = JoinSet::new();
                for (downstream, upstream) in inner {
                    let pair = pair(downstream, upstream);
                    relays.spawn(report(pair, Method::Uring, Limits::default()));
                }
                sleep(Duration::from_millis(100)).await;
                begun.wait();
                ended.wait();
                // Enough for all of them.
                sleep(Duration::from_secs(2)).await;
            });
        });
        begun.wait();
        drop(clients);
        ended.wait();
        thread::sleep(Duration::from_secs(1));
        let told = backends.iter().filter(|backend| {
            backend.set_nonblocking(true).unwrap();
            matches!((&mut &**backend).read(&mut [0]), Ok(0))
        });
        assert_eq!(told.count(), 1000);
    });
}

/// It is told once, to the ring; who takes nothing must not keep us from acting on it.
#[test]
fn a_reset_in_a_conversation_is_noticed_while_the_other_side_takes_nothing() {
    for method in METHODS {
        let ((client, backend), (downstream, upstream)) = ends();
        let (begun, ended) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            let relay = scope.spawn(|| {
                block_on(async {
                    // All that it takes has been sent to it.
                    upstream.set_nonblocking(true).unwrap();
                    assert!(fill(&upstream).1);
                    let pair = pair(downstream, upstream);
                    let relay = tokio::spawn(report(pair, method, impatient()));
                    sleep(Duration::from_millis(50)).await;
                    begun.wait();
                    ended.wait();
                    timeout(Duration::from_secs(5), relay).await
                })
            });
            begun.wait();
            client.set_nodelay(true).unwrap();
            for _ in 0..20 {
                write(&client, &pattern(1000));
            }
            thread::sleep(Duration::from_millis(20));
            reset(client);
            thread::sleep(Duration::from_millis(20));
            ended.wait();
            let report = relay.join().unwrap().expect("an end").unwrap();
            assert_eq!(report.end, End::Reset(Side::Downstream), "{method:?}");
            let Tally {
                to_upstream,
                undelivered,
                ..
            } = report.tally;
            assert_eq!(to_upstream + undelivered, 20_000, "{method:?}");
            drop(backend);
        });
    }
}

/// The runtime can't watch a socket when it comes back: that is neither side's doing, and neither is told of an end.
#[test]
#[expect(
    deprecated,
    reason = "it is the number that is to be taken, whoever owns the descriptor"
)]
fn sockets_that_do_not_come_back_are_lost() {
    let ((client, backend), (downstream, upstream)) = ends();
    let end = block_on(async {
        let descriptor = downstream.as_raw_fd();
        let pair = pair(downstream, upstream);
        let relay = tokio::spawn(report(pair, Method::Uring, Limits::default()));
        // What is watched can't be watched twice. While it converses it is not.
        let _in_its_place = loop {
            match AsyncFd::new(descriptor) {
                Ok(watched) => break watched,
                Err(_) => sleep(Duration::from_millis(1)).await,
            }
        };
        client.shutdown(Shutdown::Write).unwrap();
        timeout(Duration::from_secs(5), relay).await
    });
    assert_eq!(end.expect("an end").unwrap().end, End::Lost);
    for socket in [&client, &backend] {
        assert_eq!(read_to_reset(socket), b"");
    }
}

/// A runtime that ends before it has looked at its conversations does not leave them to the next one of its thread.
#[test]
fn one_runtime_after_another_converses() {
    let relayed = |limit: Option<Duration>| {
        let ((client, backend), (downstream, upstream)) = ends();
        write(&client, b"hello");
        block_on(async {
            let relay = report(pair(downstream, upstream), Method::Uring, Limits::default());
            tokio::select! {
                biased;
                _ = relay => panic!("it ended by itself"),
                () = async { if let Some(limit) = limit { sleep(limit).await } } => {}
            }
        });
        read_to_reset(&client);
        read_to_reset(&backend)
    };
    let runtimes = thread::spawn(move || {
        relayed(None);
        relayed(Some(Duration::from_millis(300)))
    });
    assert_eq!(runtimes.join().unwrap(), b"hello");
}

/// Both ways, in messages of 1 octet and more.
#[track_caller]
fn converse(lab: &Lab, messages: usize) {
    for n in 0..messages {
        let said = pattern(n % 50 * 20 + 1);
        write(&lab.client, &said);
        assert!(read(&lab.backend, said.len()) == said);
        write(&lab.backend, &said);
        assert!(read(&lab.client, said.len()) == said);
    }
}

/// What a client and a backend hold, and what the relay holds.
fn ends() -> ((TcpStream, TcpStream), (TcpStream, TcpStream)) {
    let ((client, downstream), (backend, upstream)) = (connected(), connected());
    ((client, backend), (downstream, upstream))
}

fn write(mut socket: &TcpStream, bytes: &[u8]) {
    socket.write_all(bytes).unwrap();
}

fn read(mut socket: &TcpStream, len: usize) -> Vec<u8> {
    let mut all = vec![0; len];
    socket.read_exact(&mut all).unwrap();
    all
}

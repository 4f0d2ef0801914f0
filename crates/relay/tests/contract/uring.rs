//! io_uring sessions: a pair that exchanges small messages is received by the ring, without any visible difference.

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
    Lab, METHODS, Report, block_on, connected, pair, pattern, read_to_end, read_to_reset, report,
    reset, send_and_finish, short_flush_timeout,
};

/// Each time, twice as many small messages are needed before the next session begins.
#[test]
fn uring_session_ends_for_bulk_and_begins_again() {
    for method in METHODS {
        let lab = Lab::new(method, Limits::default());
        let (up, down) = (pattern(4 << 20), pattern(3 << 20));
        for _ in 0..3 {
            exchange_messages(&lab, 200);
            thread::scope(|scope| {
                scope.spawn(|| write(&lab.client, &up));
                scope.spawn(|| write(&lab.backend, &down));
                let at_backend = scope.spawn(|| read(&lab.backend, up.len()) == up);
                assert!(read(&lab.client, down.len()) == down, "{method:?}");
                assert!(at_backend.join().unwrap(), "{method:?}");
            });
        }
        exchange_messages(&lab, 200);
        send_and_finish(&lab.client, b"bye");
        assert_eq!(read_to_end(&lab.backend), b"bye");
        send_and_finish(&lab.backend, b"and you");
        assert_eq!(read_to_end(&lab.client), b"and you");
        let report = lab.report();
        assert_eq!(report.end, End::Finished(Side::Downstream), "{method:?}");
        let messages: u64 = (0..200).map(|n| n % 50 * 20 + 1).sum();
        let carried = (report.tally.to_upstream, report.tally.to_downstream);
        let (up, down) = (up.len() as u64, down.len() as u64);
        assert_eq!(
            carried,
            (4 * messages + 3 * up + 3, 4 * messages + 3 * down + 7)
        );
    }
}

#[test]
fn reset_during_a_uring_session_is_passed_on() {
    for method in METHODS {
        let lab = Lab::new(method, Limits::default());
        exchange_messages(&lab, 50);
        write(&lab.backend, b"last words");
        assert_eq!(read(&lab.client, 10), b"last words");
        let (rest, report) = lab.reset(Side::Upstream);
        assert_eq!(rest, b"", "{method:?}");
        assert_eq!(report.end, End::Reset(Side::Upstream), "{method:?}");
    }
}

/// Whatever the timing of the other side's data, the relay never sends a FIN instead of the reset.
#[test]
fn reset_while_the_other_side_sends_is_passed_on_as_a_reset() {
    for method in METHODS {
        for _ in 0..50 {
            let lab = Lab::new(method, Limits::default());
            exchange_messages(&lab, 2);
            write(&lab.backend, b"what");
            let (rest, report) = lab.reset(Side::Downstream);
            assert_eq!(rest, b"", "{method:?}");
            assert_eq!(report.end, End::Reset(Side::Downstream), "{method:?}");
        }
    }
}

/// The ring has buffers of 64 KiB, and all sessions together send more than that at once.
#[test]
fn sessions_that_exceed_the_buffers_of_the_ring_lose_nothing() {
    peername_sys::process::limits::raise_open_files().unwrap();
    for method in METHODS {
        let (outer, inner): (Vec<_>, Vec<_>) = (0..100).map(|_| socket_pairs()).unzip();
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
        let message = pattern(1000);
        for _ in 0..20 {
            for _ in 0..5 {
                outer.iter().for_each(|(client, _)| write(client, &message));
            }
            for (_, backend) in &outer {
                assert!(read(backend, 5000) == message.repeat(5), "{method:?}");
            }
        }
        drop(outer);
        let carried = relays.join().unwrap();
        let all = |report: &Report| report.tally.to_upstream == 100_000;
        assert!(carried.iter().all(all), "{method:?}");
    }
}

/// More completions arrive at once than the completion queue has entries.
#[test]
fn all_uring_sessions_can_end_at_once() {
    peername_sys::process::limits::raise_open_files().unwrap();
    let (outer, inner): (Vec<_>, Vec<_>) = (0..1000).map(|_| socket_pairs()).unzip();
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
        let with_eof = backends.iter().filter(|backend| {
            backend.set_nonblocking(true).unwrap();
            matches!((&mut &**backend).read(&mut [0]), Ok(0))
        });
        assert_eq!(with_eof.count(), 1000);
    });
}

/// The reset is reported once, to the ring; a stalled side must not prevent its handling.
#[test]
fn reset_during_a_uring_session_is_detected_while_the_other_side_is_stalled() {
    for method in METHODS {
        let ((client, backend), (downstream, upstream)) = socket_pairs();
        let (begun, ended) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            let relay = scope.spawn(|| {
                block_on(async {
                    // The socket buffers of the upstream are full.
                    upstream.set_nonblocking(true).unwrap();
                    assert!(fill(&upstream).1);
                    let pair = pair(downstream, upstream);
                    let relay = tokio::spawn(report(pair, method, short_flush_timeout()));
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

/// If the runtime can't register a socket that returns from the ring, neither side is at fault, and neither sees an EOF.
#[test]
#[expect(
    deprecated,
    reason = "the test needs the raw number, without ownership of the descriptor"
)]
fn sockets_that_can_not_be_registered_again_are_lost() {
    let ((client, backend), (downstream, upstream)) = socket_pairs();
    let end = block_on(async {
        let descriptor = downstream.as_raw_fd();
        let pair = pair(downstream, upstream);
        let relay = tokio::spawn(report(pair, Method::Uring, Limits::default()));
        // A descriptor can't be registered twice. During the session it is not registered.
        let _registered_instead = loop {
            match AsyncFd::new(descriptor) {
                Ok(registered) => break registered,
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

/// A runtime that ends before it has polled its sessions does not leave them to the next runtime of its thread.
#[test]
fn successive_runtimes_of_a_thread_have_separate_sessions() {
    let relayed = |limit: Option<Duration>| {
        let ((client, backend), (downstream, upstream)) = socket_pairs();
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

/// Exchanges messages of 1 byte and more, both ways.
#[track_caller]
fn exchange_messages(lab: &Lab, messages: usize) {
    for n in 0..messages {
        let message = pattern(n % 50 * 20 + 1);
        write(&lab.client, &message);
        assert!(read(&lab.backend, message.len()) == message);
        write(&lab.backend, &message);
        assert!(read(&lab.client, message.len()) == message);
    }
}

/// The sockets of client and backend, and those of the relay.
fn socket_pairs() -> ((TcpStream, TcpStream), (TcpStream, TcpStream)) {
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

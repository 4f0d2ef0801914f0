//! The relay's contract on real sockets, for each method. Client and backend are blocking sockets of the test's thread; the
//! relay runs on a thread of its own, as in a worker.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use peername_relay::{End, Limits, Method, Prefix, RelayStats, Side, relay};
use socket2::SockRef;

mod lab;
mod random_traffic;

use lab::{
    Lab, METHODS, block_on, connected, pair, pattern, read_to_end, read_to_reset, reset, run_relay,
    send_and_finish, short_flush_timeout,
};

#[test]
fn every_byte_arrives_in_order_and_half_closed_connections_continue() {
    for method in METHODS {
        let lab = Lab::new(method, Limits::default());
        let (up, down) = (pattern(4 << 20), pattern(3 << 20));
        thread::scope(|scope| {
            scope.spawn(|| send_and_finish(&lab.client, &up));
            assert!(
                read_to_end(&lab.backend) == up,
                "{method:?}: upstream bytes differ"
            );
            // The client has finished; the other direction has not begun.
            scope.spawn(|| send_and_finish(&lab.backend, &down));
            assert!(
                read_to_end(&lab.client) == down,
                "{method:?}: downstream bytes differ"
            );
        });
        let report = lab.close();
        assert_eq!(report.end, End::Finished(Side::Downstream), "{method:?}");
        assert_eq!(
            (report.tally.to_upstream, report.tally.to_downstream),
            (4 << 20, 3 << 20)
        );
        assert_eq!(report.tally.undelivered, 0);
    }
}

#[test]
fn prefix_is_sent_first() {
    for method in METHODS {
        let all = pattern(4 << 20);
        let (already_read, rest) = all.split_at(3 << 20);
        let prefix = |bytes: &[u8], sent| Prefix {
            bytes: bytes.into(),
            sent,
            has_more: false,
        };
        let lab = Lab::with_prefix(prefix(already_read, 0), method, Limits::default());
        thread::scope(|scope| {
            scope.spawn(|| send_and_finish(&lab.client, rest));
            assert!(read_to_end(&lab.backend) == all, "{method:?}");
        });
        let tally = lab.close().tally;
        assert_eq!(
            (tally.to_upstream, tally.undelivered),
            (4 << 20, 0),
            "{method:?}"
        );

        let partly_sent = prefix(b"gone, last words", 6);
        let (read, report) =
            Lab::with_prefix(partly_sent, method, Limits::default()).reset(Side::Downstream);
        assert_eq!(report.tally.to_upstream, 16, "{method:?}");
        assert_eq!(
            (&*read, report.end),
            (&b"last words"[..], End::Reset(Side::Downstream))
        );
    }
}

#[test]
fn backend_that_half_closes_first_still_receives_everything() {
    for method in METHODS {
        let lab = Lab::new(method, Limits::default());
        send_and_finish(&lab.backend, b"banner");
        assert_eq!(read_to_end(&lab.client), b"banner");
        thread::sleep(Duration::from_millis(50));
        let late = pattern(100_000);
        thread::scope(|scope| {
            scope.spawn(|| send_and_finish(&lab.client, &late));
            assert!(read_to_end(&lab.backend) == late, "{method:?}");
        });
        assert_eq!(lab.close().end, End::Finished(Side::Upstream), "{method:?}");
    }
}

#[test]
fn reset_is_passed_on_after_the_data_before_it() {
    for method in METHODS {
        let Lab {
            client,
            mut backend,
            relay,
        } = Lab::new(method, Limits::default());
        let sent = pattern(256 << 10);
        let receive = thread::spawn(move || read_to_reset(&client));
        backend.write_all(&sent).unwrap();
        // Data that the relay has not received yet is lost with the reset, on any path.
        thread::sleep(Duration::from_millis(200));
        reset(backend);
        assert!(receive.join().unwrap() == sent, "{method:?}");
        assert_eq!(
            relay.join().unwrap().end,
            End::Reset(Side::Upstream),
            "{method:?}"
        );
    }
}

#[test]
fn reset_of_a_half_closed_side_is_detected_while_idle() {
    for method in METHODS {
        let Lab {
            client,
            backend,
            relay,
        } = Lab::new(method, Limits::default());
        send_and_finish(&client, b"request");
        assert_eq!(read_to_end(&backend), b"request");
        reset(client);
        let report = relay.join().unwrap();
        assert_eq!(report.end, End::Reset(Side::Downstream), "{method:?}");
        // After FIN a read does not report the reset; the socket's error does.
        let error = backend.take_error().unwrap().map(|error| error.kind());
        assert_eq!(error, Some(ErrorKind::BrokenPipe), "{method:?}");
    }
}

#[test]
fn backpressure_of_a_stalled_reader_reaches_the_writer() {
    for method in METHODS {
        let lab = Lab::new(method, Limits::default());
        lab.client.set_nonblocking(true).unwrap();
        let (sent, stalled) = fill(&lab.client);
        assert!(stalled, "{method:?}: {sent} bytes were taken and none read");
        let mut read = vec![0; sent];
        (&lab.backend).read_exact(&mut read).unwrap();
        assert!(read.iter().all(|byte| *byte == 7), "{method:?}");
    }
}

/// Writes until the socket accepts nothing for half a second, or until more is written than socket buffers can hold. Returns
/// the bytes written, and whether the socket stalled.
fn fill(mut socket: &TcpStream) -> (usize, bool) {
    let (chunk, mut sent, mut tries) = ([7; 65536], 0, 0);
    while sent < 256 << 20 {
        match socket.write(&chunk) {
            Ok(n) => (sent, tries) = (sent + n, 0),
            Err(_) if tries == 50 => return (sent, true),
            Err(_) => {
                tries += 1;
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
    (sent, false)
}

#[test]
fn idle_timeout_resets_both_sides_and_activity_prevents_it() {
    let limits = Limits {
        idle: Some(Duration::from_millis(300)),
        ..Limits::default()
    };
    let Lab {
        mut client,
        backend,
        relay,
    } = Lab::new(Method::Auto, limits);
    for _ in 0..5 {
        thread::sleep(Duration::from_millis(150));
        client.write_all(b"alive").unwrap();
    }
    assert_eq!(read_to_reset(&backend), b"alive".repeat(5));
    assert_eq!(read_to_reset(&client), b"");
    let report = relay.join().unwrap();
    assert_eq!(report.end, End::Idle);
    assert_eq!(report.tally.to_upstream, 25);
}

#[test]
fn half_closed_connection_has_its_own_idle_timeout() {
    let limits = Limits {
        half_closed: Duration::from_millis(300),
        ..Limits::default()
    };
    let Lab {
        client,
        backend,
        relay,
    } = Lab::new(Method::Auto, limits);
    thread::sleep(Duration::from_millis(500));
    send_and_finish(&client, b"request");
    assert_eq!(read_to_end(&backend), b"request");
    assert_eq!(read_to_reset(&client), b"");
    assert_eq!(relay.join().unwrap().end, End::Idle);
}

#[test]
fn dropped_relay_resets_both_sides() {
    for method in METHODS {
        for runtime_continues in [false, true] {
            let ((client, downstream), (mut backend, upstream)) = (connected(), connected());
            let dropped = thread::spawn(move || {
                block_on(async move {
                    let stats = Arc::<RelayStats>::default();
                    let pair = pair(downstream, upstream);
                    let relay = relay(
                        pair,
                        Prefix::default(),
                        method,
                        Limits::default(),
                        Arc::clone(&stats),
                    );
                    let limit = tokio::time::sleep(Duration::from_millis(300));
                    tokio::select! { _ = relay => panic!("it ended by itself"), () = limit => {} }
                    if runtime_continues {
                        tokio::time::sleep(Duration::from_millis(300)).await;
                    }
                    stats.tally()
                })
            });
            backend.write_all(b"half an ans").unwrap();
            assert_eq!(read_to_reset(&client), b"half an ans", "{method:?}");
            assert_eq!(read_to_reset(&backend), b"", "{method:?}");
            assert_eq!(dropped.join().unwrap().to_downstream, 11, "{method:?}");
        }
    }
}

/// Reads stop at the mark of urgent data, and splice(2) never passes it.
#[test]
fn urgent_data_and_the_data_after_it_arrive_in_order() {
    for method in METHODS {
        for head_len in [0, 2, 1 << 20] {
            let lab = Lab::new(method, Limits::default());
            let (head, tail) = (pattern(head_len), pattern(300_000));
            let sent = [&head[..], b"!", &tail].concat();
            thread::scope(|scope| {
                scope.spawn(|| {
                    (&lab.client).write_all(&head).unwrap();
                    assert_eq!(
                        SockRef::from(&lab.client).send_out_of_band(b"!").unwrap(),
                        1
                    );
                    send_and_finish(&lab.client, &tail);
                });
                let got = read_to_end(&lab.backend);
                assert!(
                    got == sent,
                    "{method:?}, {head_len}: {} of {}",
                    got.len(),
                    sent.len()
                );
            });
        }
    }
}

/// All data is queued before the relay reads, so that no later event triggers another read.
#[test]
fn data_queued_after_urgent_data_is_relayed() {
    for method in METHODS {
        let ((mut client, downstream), (mut backend, upstream)) = (connected(), connected());
        client.write_all(b"ab").unwrap();
        SockRef::from(&client).send_out_of_band(b"!").unwrap();
        client.write_all(b"tail").unwrap();
        peername_sys::tcp::stream::tune(&downstream).unwrap();
        thread::spawn(move || {
            block_on(async move {
                let pair = pair(downstream, upstream);
                run_relay(pair, Prefix::default(), method, Limits::default()).await
            })
        });
        let mut got = [0; 7];
        backend.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"ab!tail", "{method:?}");
    }
}

#[test]
fn reset_is_detected_while_the_other_side_is_stalled() {
    for method in METHODS {
        let Lab {
            client,
            backend,
            relay,
        } = Lab::new(method, short_flush_timeout());
        backend.set_nonblocking(true).unwrap();
        assert!(fill(&backend).1, "{method:?}");
        reset(backend);
        // The client has read nothing and is still connected.
        let report = relay.join().unwrap();
        assert_eq!(report.end, End::Reset(Side::Upstream), "{method:?}");
        read_to_reset(&client);
    }
}

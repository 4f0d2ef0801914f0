//! The relay's contract on real sockets, for each method. Client and backend are blocking sockets of
//! the test's thread; the relay runs on a thread of its own, as it does in a worker.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use peername_relay::{End, Limits, Method, Prefix, Side, Tally, relay};
use socket2::SockRef;

mod conversation;
mod lab;
mod mixture;

use lab::{
    Lab, METHODS, block_on, connected, impatient, pair, pattern, read_to_end, read_to_reset,
    report, reset, send_and_finish,
};

#[test]
fn every_byte_arrives_in_order_and_half_closed_directions_go_on() {
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
        let report = lab.report();
        assert_eq!(report.end, End::Finished(Side::Downstream), "{method:?}");
        assert_eq!(
            (report.tally.to_upstream, report.tally.to_downstream),
            (4 << 20, 3 << 20)
        );
        assert_eq!(report.tally.undelivered, 0);
    }
}

#[test]
fn what_has_been_read_already_goes_first() {
    for method in METHODS {
        let all = pattern(4 << 20);
        let (read, sent) = all.split_at(3 << 20);
        let ahead = |octets: &[u8], sent| Prefix {
            bytes: octets.into(),
            sent,
            has_more: false,
        };
        let lab = Lab::behind(ahead(read, 0), method, Limits::default());
        thread::scope(|scope| {
            scope.spawn(|| send_and_finish(&lab.client, sent));
            assert!(read_to_end(&lab.backend) == all, "{method:?}");
        });
        let tally = lab.report().tally;
        assert_eq!(
            (tally.to_upstream, tally.undelivered),
            (4 << 20, 0),
            "{method:?}"
        );

        let said = ahead(b"gone, last words", 6);
        let (read, report) = Lab::behind(said, method, Limits::default()).reset(Side::Downstream);
        assert_eq!(report.tally.to_upstream, 16, "{method:?}");
        assert_eq!(
            (&*read, report.end),
            (&b"last words"[..], End::Reset(Side::Downstream))
        );
    }
}

#[test]
fn a_backend_that_finishes_first_still_gets_everything() {
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
        assert_eq!(
            lab.report().end,
            End::Finished(Side::Upstream),
            "{method:?}"
        );
    }
}

#[test]
fn a_reset_arrives_as_one_after_what_came_before_it() {
    for method in METHODS {
        let Lab {
            client,
            mut backend,
            relay,
        } = Lab::new(method, Limits::default());
        let sent = pattern(256 << 10);
        let receive = thread::spawn(move || read_to_reset(&client));
        backend.write_all(&sent).unwrap();
        // What the relay has not received yet is lost with the reset, on any path.
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
fn a_reset_of_a_half_closed_side_is_noticed_while_nothing_moves() {
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
        // After FIN a read can't tell; the socket's error can.
        let error = backend.take_error().unwrap().map(|error| error.kind());
        assert_eq!(error, Some(ErrorKind::BrokenPipe), "{method:?}");
    }
}

#[test]
fn a_reader_that_reads_nothing_holds_back_its_writer() {
    for method in METHODS {
        let lab = Lab::new(method, Limits::default());
        lab.client.set_nonblocking(true).unwrap();
        let (sent, stalled) = fill(&lab.client);
        assert!(stalled, "{method:?}: {sent} bytes were taken and none read");
        let mut read = vec![0; sent];
        (&lab.backend).read_exact(&mut read).unwrap();
        assert!(read.iter().all(|octet| *octet == 7), "{method:?}");
    }
}

/// Writes until nothing is taken for half a second, or until more is than sockets can hold.
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
fn silence_beyond_the_limit_ends_it_with_resets_and_activity_does_not() {
    let limits = Limits {
        idle: Some(Duration::from_millis(300)),
        ..Limits::default()
    };
    for method in [Method::Auto, Method::Uring] {
        let Lab {
            mut client,
            backend,
            relay,
        } = Lab::new(method, limits);
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(150));
            client.write_all(b"alive").unwrap();
        }
        assert_eq!(read_to_reset(&backend), b"alive".repeat(5));
        assert_eq!(read_to_reset(&client), b"");
        let report = relay.join().unwrap();
        assert_eq!(report.end, End::Idle, "{method:?}");
        assert_eq!(report.tally.to_upstream, 25, "{method:?}");
    }
}

#[test]
fn a_half_closed_connection_has_a_limit_of_its_own() {
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
fn a_relay_that_is_dropped_resets_both_sides() {
    for method in METHODS {
        for goes_on in [false, true] {
            let ((client, downstream), (mut backend, upstream)) = (connected(), connected());
            let cut = thread::spawn(move || {
                block_on(async move {
                    let mut tally = Tally::default();
                    let pair = pair(downstream, upstream);
                    let relay = relay(
                        pair,
                        Prefix::default(),
                        method,
                        Limits::default(),
                        &mut tally,
                    );
                    let limit = tokio::time::sleep(Duration::from_millis(300));
                    tokio::select! { _ = relay => panic!("it ended by itself"), () = limit => {} }
                    if goes_on {
                        tokio::time::sleep(Duration::from_millis(300)).await;
                    }
                    tally
                })
            });
            backend.write_all(b"half an ans").unwrap();
            assert_eq!(read_to_reset(&client), b"half an ans", "{method:?}");
            assert_eq!(read_to_reset(&backend), b"", "{method:?}");
            assert_eq!(cut.join().unwrap().to_downstream, 11, "{method:?}");
        }
    }
}

/// Reads stop at the mark of urgent data, and splice(2) never passes it.
#[test]
fn urgent_data_arrives_in_its_place_and_so_does_what_follows() {
    for method in METHODS {
        for before in [0, 2, 1 << 20] {
            let lab = Lab::new(method, Limits::default());
            let (head, tail) = (pattern(before), pattern(300_000));
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
                    "{method:?}, {before}: {} of {}",
                    got.len(),
                    sent.len()
                );
            });
        }
    }
}

/// All of it is queued before the relay reads, so that no later event comes to its help.
#[test]
fn what_is_queued_behind_urgent_data_is_not_left_there() {
    for method in METHODS {
        let ((mut client, downstream), (mut backend, upstream)) = (connected(), connected());
        client.write_all(b"ab").unwrap();
        SockRef::from(&client).send_out_of_band(b"!").unwrap();
        client.write_all(b"tail").unwrap();
        peername_sys::tcp::stream::tune(&downstream).unwrap();
        thread::spawn(move || {
            block_on(
                async move { report(pair(downstream, upstream), method, Limits::default()).await },
            )
        });
        let mut got = [0; 7];
        backend.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"ab!tail", "{method:?}");
    }
}

#[test]
fn a_reset_is_noticed_while_the_other_side_takes_nothing() {
    for method in METHODS {
        let Lab {
            client,
            backend,
            relay,
        } = Lab::new(method, impatient());
        backend.set_nonblocking(true).unwrap();
        assert!(fill(&backend).1, "{method:?}");
        reset(backend);
        // The client has read nothing and is still there.
        let report = relay.join().unwrap();
        assert_eq!(report.end, End::Reset(Side::Upstream), "{method:?}");
        read_to_reset(&client);
    }
}

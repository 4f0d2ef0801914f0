//! Whatever is wrong with the service: a denial, in time, for no memory.

mod grpc;
mod http;

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use peername_intercept::authz::{Failure, How, OnFailure, Verdict};
use tokio::time::{Instant, sleep};

use crate::broken::{
    Fault, close_with_reset, hold_open, serve_fault, write_endlessly, write_forever, write_frames,
};
use crate::ext_authz::denial;
use crate::h2::{self, frame};
use crate::rig::{ask, check, counted, hasty};
use crate::service::{any_loopback, unused_address};

fn urls(address: SocketAddr) -> [String; 3] {
    [
        format!("grpc://{address}"),
        format!("http://{address}/"),
        format!("opa+http://{address}/v1/data/egress"),
    ]
}

/// Asks, beside a clock of the same runtime: on a machine that is busy both are late.
async fn in_time(url: &str, what: &str) -> Verdict {
    let client = hasty(url, |_| ()).client();
    let clock = async {
        let begun = Instant::now();
        sleep(TIMEOUT).await;
        begun.elapsed()
    };
    let (clock, verdict) = tokio::join!(clock, ask(&client));
    assert!(
        verdict.took <= clock + GRACE,
        "{what}, {url}: {:?} by {clock:?}",
        verdict.took
    );
    assert!(!verdict.decision.allows(), "{what}, {url}");
    assert_eq!(denial(&verdict).status.as_u16(), 503, "{what}, {url}");
    verdict
}

async fn all_denied(faults: &[Fault], which: impl Fn(&str) -> bool) {
    for (what, fault) in faults {
        let urls = urls(serve_fault(any_loopback(), *fault));
        let asked = urls.iter().filter(|url| which(url)).map(async |url| {
            let verdict = in_time(url, what).await;
            assert!(
                matches!(verdict.how, How::Failed(_)),
                "{what}, {url}: {verdict:?}"
            );
        });
        join_all(asked).await;
    }
}

#[tokio::test]
async fn nobody_there() {
    for url in urls(unused_address()) {
        let verdict = in_time(&url, "nobody there").await;
        assert!(
            matches!(verdict.how, How::Failed(Failure::Connect(_))),
            "{verdict:?}"
        );
        assert!(verdict.took < TIMEOUT);
    }
}

#[tokio::test]
async fn whatever_it_speaks() {
    let faults: &[Fault] = &[
        ("silent", |stream| hold_open(&stream)),
        ("slow", |stream| {
            h2::read_some(&stream);
            hold_open(&stream);
        }),
        ("closes", drop),
        ("closes when asked", |stream| h2::read_some(&stream)),
        ("resets", |stream| close_with_reset(stream)),
        ("resets when asked", |stream| {
            let _ = (&stream).read(&mut [0]);
            close_with_reset(stream);
        }),
        ("garbage", |mut stream| {
            let _ = stream.write_all(&[0xff; 4096]);
            hold_open(&stream);
        }),
        ("garbage for ever", |stream| {
            write_forever(&stream, &[0x16; 65536])
        }),
        ("zeros for ever", |stream| {
            write_forever(&stream, &[0; 65536])
        }),
        ("TLS", |mut stream| {
            h2::read_some(&stream);
            let _ = stream.write_all(b"\x15\x03\x03\x00\x02\x02\x46");
        }),
        ("another protocol", |mut stream| {
            let _ = stream.write_all(b"220 mail.test ESMTP\r\n");
            hold_open(&stream);
        }),
        ("a drip", |mut stream| {
            for octet in b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
                .iter()
                .cycle()
            {
                thread::sleep(Duration::from_millis(50));
                if stream.write_all(&[*octet]).is_err() {
                    break;
                }
            }
        }),
    ];
    all_denied(faults, |_| true).await;
}

/// A GiB is announced, and as much of it sent as anybody reads.
#[tokio::test]
async fn an_answer_of_a_gigabyte_costs_no_memory() {
    let over_http: &[Fault] = &[
        ("a length", |stream| {
            write_endlessly(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n",
                &[b'x'; 65536],
            );
        }),
        ("no length", |stream| {
            write_endlessly(&stream, b"HTTP/1.1 200 OK\r\n\r\n", &[b'x'; 65536]);
        }),
    ];
    let over_grpc: &[Fault] = &[
        ("a message", |stream| {
            h2::begin_response(&stream);
            write_frames(&stream, &[frame(h2::DATA, 0, 1, &[0, 0x40, 0, 0, 0])]);
            write_forever(&stream, &frame(h2::DATA, 0, 1, &[0; 16384]));
        }),
        ("small frames", |stream| {
            h2::begin_response(&stream);
            write_frames(&stream, &[frame(h2::DATA, 0, 1, &[0, 0, 0, 0xff, 0xff])]);
            write_forever(&stream, &frame(h2::DATA, 0, 1, &[0]));
        }),
    ];
    // Forgets the peak until now (proc_pid_clear_refs(5)).
    std::fs::write("/proc/self/clear_refs", "5").expect("forget the peak");
    let before = memory("VmRSS:");
    for _ in 0..2 {
        all_denied(over_http, |url| !url.starts_with("grpc")).await;
        all_denied(over_grpc, |url| url.starts_with("grpc")).await;
    }
    let grown = memory("VmHWM:").saturating_sub(before);
    // What the tests beside this one take is in it.
    println!("{grown} KiB at the most");
    assert!(grown < 16 << 10, "{grown} KiB more");
}

#[tokio::test]
async fn one_that_fails_each_time_is_not_asked_each_time() {
    for url in urls(serve_fault(any_loopback(), drop)) {
        let check = check(&url, |_| ());
        let client = check.client();
        for _ in 0..10 {
            assert!(!matches!(
                ask(&client).await.how,
                How::Failed(Failure::Suspended)
            ));
        }
        let mut took = Vec::new();
        for _ in 0..100 {
            let verdict = ask(&client).await;
            assert!(
                matches!(verdict.how, How::Failed(Failure::Suspended)),
                "{verdict:?}"
            );
            assert_eq!(denial(&verdict).status.as_u16(), 503);
            took.push(verdict.took);
        }
        took.sort();
        // Nothing is waited for; the slowest may have lost the processor meanwhile.
        assert!(took[98] < Duration::from_millis(5), "{took:?}");
        assert_eq!(
            counted(&check, r#"peername_check_total{outcome="error"}"#),
            10
        );
        assert_eq!(
            counted(&check, r#"peername_check_total{outcome="suspended"}"#),
            100
        );
        assert_eq!(counted(&check, "peername_check_suspended"), 1);
    }
}

/// One at a time: the second question waits for the first, and not beyond its own time.
#[tokio::test]
async fn more_questions_than_may_be_open_wait() {
    let address = serve_fault(any_loopback(), |stream| hold_open(&stream));
    for url in urls(address) {
        let check = hasty(&url, |config| config.concurrency = 1.try_into().unwrap());
        let client = check.client();
        let (first, second) = tokio::join!(ask(&client), ask(&client));
        assert!(
            matches!(first.how, How::Failed(Failure::Timeout(_))),
            "{first:?}"
        );
        assert!(
            matches!(
                second.how,
                How::Failed(Failure::Busy(1) | Failure::Timeout(_))
            ),
            "{second:?}"
        );
        assert!(second.took < TIMEOUT * 2);
    }
}

#[tokio::test]
async fn who_prefers_it_is_let_through_and_counted() {
    let check = check(&urls(unused_address())[0], |config| {
        config.on_failure = OnFailure::Allow;
    });
    let client = check.client();
    for _ in 0..15 {
        let verdict = ask(&client).await;
        assert!(verdict.decision.allows());
        assert!(matches!(verdict.how, How::FailedOpen(_)));
    }
    assert_eq!(
        counted(&check, r#"peername_check_total{outcome="fail_open"}"#),
        15
    );
}

/// Of this process, now or at its peak, in KiB.
fn memory(which: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix(which));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .expect("a number")
}

const TIMEOUT: Duration = Duration::from_millis(500);
/// From the end of the timeout to the denial.
const GRACE: Duration = Duration::from_millis(10);

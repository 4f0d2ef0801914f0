//! Whatever is wrong with the service: a denial, in time, for no memory.

mod grpc;
mod http;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use peername_intercept::check::{Failure, How, OnFailure, Verdict};
use tokio::time::{Instant, sleep};

use crate::ext_authz::denial;
use crate::h2::{self, frame};
use crate::rig::{any, ask, check, client, counted, free};

type Fault = (&'static str, fn(TcpStream));

/// Serves every connection like this, until the process ends.
fn serve(fault: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind(any()).expect("bind");
    let address = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || fault(stream));
        }
    });
    address
}

fn urls(address: SocketAddr) -> [String; 3] {
    [
        format!("grpc://{address}"),
        format!("http://{address}/"),
        format!("opa+http://{address}/v1/data/egress"),
    ]
}

/// Asks, beside a clock of the same runtime: on a machine that is busy both are late.
async fn in_time(url: &str, what: &str) -> Verdict {
    let client = client(url);
    let clock = async {
        let begun = Instant::now();
        sleep(TIMEOUT).await;
        begun.elapsed()
    };
    let (verdict, clock) = tokio::join!(ask(&client), clock);
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
        let address = serve(*fault);
        for url in urls(address).iter().filter(|url| which(url)) {
            let verdict = in_time(url, what).await;
            assert!(
                matches!(verdict.how, How::Failed(_)),
                "{what}, {url}: {verdict:?}"
            );
        }
    }
}

#[tokio::test]
async fn nobody_there() {
    for url in urls(free()) {
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
        ("silent", |stream| hold(&stream)),
        ("slow", |stream| {
            h2::read(&stream);
            hold(&stream);
        }),
        ("closes", drop),
        ("closes when asked", |stream| h2::read(&stream)),
        ("resets", |stream| reset(stream)),
        ("resets when asked", |stream| {
            let _ = (&stream).read(&mut [0]);
            reset(stream);
        }),
        ("garbage", |mut stream| {
            let _ = stream.write_all(&[0xff; 4096]);
            hold(&stream);
        }),
        ("garbage for ever", |stream| flood(&stream, &[0x16; 65536])),
        ("zeros for ever", |stream| flood(&stream, &[0; 65536])),
        ("TLS", |mut stream| {
            h2::read(&stream);
            let _ = stream.write_all(b"\x15\x03\x03\x00\x02\x02\x46");
        }),
        ("another protocol", |mut stream| {
            let _ = stream.write_all(b"220 mail.test ESMTP\r\n");
            hold(&stream);
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
            endless(
                &stream,
                b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n",
                &[b'x'; 65536],
            );
        }),
        ("no length", |stream| {
            endless(&stream, b"HTTP/1.1 200 OK\r\n\r\n", &[b'x'; 65536]);
        }),
    ];
    let over_grpc: &[Fault] = &[
        ("a message", |stream| {
            h2::begin(&stream);
            frames(&stream, &[frame(h2::DATA, 0, 1, &[0, 0x40, 0, 0, 0])]);
            flood(&stream, &frame(h2::DATA, 0, 1, &[0; 16384]));
        }),
        ("small frames", |stream| {
            h2::begin(&stream);
            frames(&stream, &[frame(h2::DATA, 0, 1, &[0, 0, 0, 0xff, 0xff])]);
            flood(&stream, &frame(h2::DATA, 0, 1, &[0]));
        }),
    ];
    let before = resident();
    for _ in 0..4 {
        all_denied(over_http, |url| !url.starts_with("grpc")).await;
        all_denied(over_grpc, |url| url.starts_with("grpc")).await;
    }
    let grown = resident().saturating_sub(before);
    // What the tests beside this one take is in it.
    assert!(grown < 16 << 10, "{grown} KiB more");
}

#[tokio::test]
async fn one_that_fails_each_time_is_not_asked_each_time() {
    for url in urls(serve(drop)) {
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
    let address = serve(|stream| hold(&stream));
    for url in urls(address) {
        let check = check(&url, |config| config.concurrency = 1.try_into().unwrap());
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
    let check = check(&urls(free())[0], |config| {
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

/// Of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .expect("a number")
}

/// Says this when asked, and closes.
fn say(mut stream: &TcpStream, what: &[u8]) {
    h2::read(stream);
    let _ = stream.write_all(what);
}

fn frames(mut stream: &TcpStream, frames: &[Vec<u8>]) {
    let _ = stream.write_all(&frames.concat());
    // Closing with something unread would reset, and take back what was sent.
    thread::sleep(Duration::from_millis(20));
    h2::read(stream);
}

/// Says this when asked, and then that for ever.
fn endless(mut stream: &TcpStream, first: &[u8], then: &[u8]) {
    h2::read(stream);
    let _ = stream.write_all(first);
    flood(stream, then);
}

fn flood(mut stream: &TcpStream, what: &[u8]) {
    let many = what.repeat(65536_usize.div_ceil(what.len()));
    while stream.write_all(&many).is_ok() {}
}

/// Until the other side has had enough.
fn hold(mut stream: &TcpStream) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(30)));
    while stream.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {}
}

fn reset(stream: TcpStream) {
    let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
}

/// A CheckResponse with an empty status, which is a yes.
const YES: &[u8] = &[0, 0, 0, 0, 2, 0x0a, 0];
const TIMEOUT: Duration = Duration::from_millis(500);
/// From the end of the timeout to the denial.
const GRACE: Duration = Duration::from_millis(10);

//! Fault injection: every fault of a check service leads to a denial, in time, and takes little memory.

mod grpc;
mod http;

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use peername_intercept::authz::{AuthzError, DecidedBy, Verdict};
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep};

use crate::broken::{
    Fault, close_with_reset, hold_open, write_endlessly, write_forever, write_frames,
};
use crate::ext_authz::denial;
use crate::h2::{self, frame};
use crate::rig::{CheckInput, ask, check, check_with_default_timeout, failure, metric};
use crate::service::unused_address;

fn urls(address: SocketAddr) -> [String; 3] {
    [
        format!("grpc://{address}"),
        format!("http://{address}/"),
        format!("opa+http://{address}/v1/data/egress"),
    ]
}

/// Queries, and asserts a denial within the timeout. A timer in the same runtime is the reference: on a busy machine both are
/// late.
async fn query_within_timeout(url: &str, fault: &str) -> Verdict {
    let client = check_with_default_timeout(url, |_| ()).client();
    let timer = async {
        let begun = Instant::now();
        sleep(TIMEOUT).await;
        begun.elapsed()
    };
    let (timer_took, verdict) = tokio::join!(timer, ask(&client));
    assert!(
        verdict.took <= timer_took + GRACE,
        "{fault}, {url}: {:?}, and the timer {timer_took:?}",
        verdict.took
    );
    assert!(!verdict.decision.allows(), "{fault}, {url}");
    assert_eq!(denial(&verdict).status.as_u16(), 503, "{fault}, {url}");
    verdict
}

/// Asserts that each fault is a failure, in the protocols whose URLs are selected.
async fn assert_all_denied(faults: &[Fault], selects: impl Fn(&str) -> bool) {
    for fault in faults {
        let name = fault.name;
        let urls = urls(fault.serve());
        let queries = urls.iter().filter(|url| selects(url)).map(async |url| {
            let verdict = query_within_timeout(url, name).await;
            assert!(failure(&verdict).is_some(), "{name}, {url}: {verdict:?}");
        });
        join_all(queries).await;
    }
}

#[tokio::test]
async fn closed_port_is_denied() {
    for url in urls(unused_address()) {
        let verdict = query_within_timeout(&url, "closed port").await;
        assert_eq!(failure(&verdict), Some("check_connect"), "{verdict:?}");
        assert!(verdict.took < TIMEOUT);
    }
}

#[tokio::test]
async fn broken_protocols_are_denied() {
    let faults = [
        Fault::new("silent", |stream| hold_open(&stream)),
        Fault::new("slow", |stream| {
            h2::read_some(&stream);
            hold_open(&stream);
        }),
        Fault::new("closes", drop),
        Fault::new("closes when asked", |stream| h2::read_some(&stream)),
        Fault::new("resets", close_with_reset),
        Fault::new("resets when asked", |stream| {
            let _ = (&stream).read(&mut [0]);
            close_with_reset(stream);
        }),
        Fault::new("garbage", |mut stream| {
            let _ = stream.write_all(&[0xff; 4096]);
            hold_open(&stream);
        }),
        Fault::new("garbage for ever", |stream| {
            write_forever(&stream, &[0x16; 65536]);
        }),
        Fault::new("zeros for ever", |stream| {
            write_forever(&stream, &[0; 65536]);
        }),
        Fault::new("TLS", |mut stream| {
            h2::read_some(&stream);
            let _ = stream.write_all(b"\x15\x03\x03\x00\x02\x02\x46");
        }),
        Fault::new("another protocol", |mut stream| {
            let _ = stream.write_all(b"220 mail.test ESMTP\r\n");
            hold_open(&stream);
        }),
        Fault::new("a drip", |mut stream| {
            for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
                .iter()
                .cycle()
            {
                thread::sleep(Duration::from_millis(50));
                if stream.write_all(&[*byte]).is_err() {
                    break;
                }
            }
        }),
    ];
    assert_all_denied(&faults, |_| true).await;
}

/// Counts what the client's thread allocates, without the services and concurrent tests.
#[test]
fn answer_of_a_gibibyte_takes_little_memory() {
    let over_http = [
        Fault::http_gibibyte(),
        Fault::new("no length", |stream| {
            write_endlessly(&stream, b"HTTP/1.1 200 OK\r\n\r\n", &[b'x'; 65536]);
        }),
    ];
    let over_grpc = [
        Fault::grpc_gibibyte(),
        Fault::new("small frames", |stream| {
            h2::begin_response(&stream);
            write_frames(&stream, &[frame(h2::DATA, 0, 1, &[0, 0, 0, 0xff, 0xff])]);
            write_forever(&stream, &frame(h2::DATA, 0, 1, &[0]));
        }),
    ];
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let allocated = allocation_counter::measure(|| {
        runtime.block_on(async {
            assert_all_denied(&over_http, |url| !url.starts_with("grpc")).await;
            assert_all_denied(&over_grpc, |url| url.starts_with("grpc")).await;
        });
    });
    assert!(allocated.bytes_max < 16 << 20, "{allocated:?}");
}

#[tokio::test]
async fn circuit_breaker_opens_for_a_failing_service() {
    for url in urls(Fault::new("closes", drop).serve()) {
        let check = check(&url, |_| ());
        let client = check.client();
        let (mut failed, mut suspended) = (0, Vec::new());
        let mut closed_at = Instant::now();
        while metric(&check, "peername_check_suspended") == 0 {
            closed_at = Instant::now();
            assert_ne!(failure(&ask(&client).await), Some("check_suspended"));
            failed += 1;
            assert!(failed < 100, "{url}");
        }
        assert!(failed >= 10, "{failed} failures");
        for _ in 0..100 {
            let verdict = ask(&client).await;
            assert_eq!(denial(&verdict).status.as_u16(), 503);
            if failure(&verdict) == Some("check_suspended") {
                suspended.push(verdict.took);
            } else {
                failed += 1;
                // One query each second probes the service.
                let probes = 100 - suspended.len() as u64;
                assert!(probes <= closed_at.elapsed().as_secs(), "{verdict:?}");
            }
        }
        suspended.sort();
        // These return at once, but for those during which the test was preempted.
        let median = suspended[suspended.len() / 2];
        assert!(median < Duration::from_millis(5), "{suspended:?}");
        for (outcome, count) in [("error", failed), ("suspended", suspended.len() as u64)] {
            let sample = format!("peername_check_total{{outcome=\"{outcome}\"}}");
            assert_eq!(metric(&check, &sample), count);
        }
        assert_eq!(metric(&check, "peername_check_suspended"), 1);
    }
}

/// A client may cause the error by its own requests. The checks of others go on.
#[tokio::test]
async fn service_that_answers_with_errors_is_not_suspended() {
    let answers = [
        (
            "http",
            "check_status",
            Fault::answers("500", b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"),
        ),
        (
            "opa",
            "check_malformed",
            Fault::ok_with("not JSON", b"true"),
        ),
        ("opa", "check_too_long", Fault::http_gibibyte()),
        ("grpc", "check_status", Fault::grpc_data("13", b"", b"13")),
    ];
    for (scheme, code, answer) in answers {
        let urls = urls(answer.serve());
        let url = urls.iter().find(|url| url.starts_with(scheme)).unwrap();
        let check = check(url, |_| ());
        let client = check.client();
        for _ in 0..20 {
            let verdict = ask(&client).await;
            assert_eq!(failure(&verdict), Some(code), "{url}: {verdict:?}");
        }
        assert_eq!(metric(&check, "peername_check_suspended"), 0, "{url}");
    }
}

/// With one concurrent query: the second one waits for the first, but not beyond its own deadline.
#[tokio::test]
async fn queries_beyond_the_concurrency_limit_wait() {
    let silent = Fault::new("silent", |stream| hold_open(&stream));
    for url in urls(silent.serve()) {
        let check =
            check_with_default_timeout(&url, |config| config.concurrency = 1.try_into().unwrap());
        let client = check.client();
        let (first, second) = tokio::join!(ask(&client), ask(&client));
        assert_eq!(failure(&first), Some("check_timeout"), "{first:?}");
        assert!(
            matches!(failure(&second), Some("check_busy" | "check_timeout")),
            "{second:?}"
        );
        assert!(second.took < TIMEOUT * 2);
    }
}

/// A service that takes most of the timeout is healthy. The checks of a client beyond its share get their permits too late.
#[tokio::test]
async fn flood_of_one_client_neither_delays_others_nor_opens_the_circuit_breaker() {
    let timeout = Duration::from_secs(2);
    let slow = Fault::new("slow", move |stream| {
        h2::read_some(&stream);
        thread::sleep(timeout * 2 / 3);
        let _ = (&stream).write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    });
    let url = format!("http://{}/", slow.serve());
    let check = check_with_default_timeout(&url, |config| {
        config.timeout = timeout;
        config.concurrency = 15.try_into().unwrap();
    });
    let client = check.client();
    let another = CheckInput::with(|input| input.client = ([192, 0, 2, 8], 50_000).into());
    let flood = join_all((0..30).map(|_| ask(&client)));
    // These wait for a shorter time than the service needs, and too long nevertheless.
    let second_wave = async {
        sleep(timeout / 4).await;
        join_all((0..10).map(|_| ask(&client))).await
    };
    let (flood, second_wave, verdict) = tokio::join!(flood, second_wave, another.ask(&client));
    assert!(verdict.decision.allows(), "{verdict:?}");
    let flood = flood.into_iter().chain(second_wave);
    let (allowed, failed): (Vec<_>, Vec<_>) = flood.partition(|verdict| verdict.decision.allows());
    assert_eq!(allowed.len(), 10);
    for verdict in failed {
        assert!(
            matches!(verdict.decided_by, DecidedBy::Failure(AuthzError::Busy(15))),
            "{verdict:?}"
        );
    }
    assert_eq!(
        metric(&check, r#"peername_check_total{outcome="busy"}"#),
        30
    );
    assert_eq!(metric(&check, "peername_check_suspended"), 0);
    assert!(ask(&client).await.decision.allows());
}

/// Most of the timeout is left to checks that waited for a permit, so their timeouts tell that the service hangs.
#[tokio::test]
async fn service_that_hangs_while_checks_queue_is_suspended() {
    let answered = AtomicUsize::new(0);
    let hanging = Fault::new("hangs", move |stream| {
        h2::read_some(&stream);
        if answered.fetch_add(1, Relaxed) >= 10 {
            return hold_open(&stream);
        }
        thread::sleep(Duration::from_millis(200));
        let _ = (&stream).write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    });
    let url = format!("http://{}/", hanging.serve());
    let check = check_with_default_timeout(&url, |config| {
        config.timeout = Duration::from_secs(2);
        config.concurrency = 15.try_into().unwrap();
    });
    let client = check.client();
    let verdicts = join_all((0..20).map(|_| ask(&client))).await;
    let (allowed, failed): (Vec<_>, Vec<_>) = verdicts
        .into_iter()
        .partition(|verdict| verdict.decision.allows());
    assert_eq!(allowed.len(), 10);
    for verdict in failed {
        assert_eq!(failure(&verdict), Some("check_timeout"), "{verdict:?}");
    }
    assert_eq!(metric(&check, "peername_check_suspended"), 1);
}

const TIMEOUT: Duration = Duration::from_millis(500);
/// From the end of the timeout to the denial.
const GRACE: Duration = Duration::from_millis(10);

//! Faults of the check service: every request is denied, within the timeout and in bounded memory, until the
//! service is back.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::addr::v4;
use crate::harness::check::broken::{Fault, hold_open};
use crate::harness::check::service::{Opa, Service, unused_address};
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, Process, wait_until};
use crate::harness::rig::intercept::{
    InterceptLab, InterceptRig, LONG_CHECK_TIMEOUT, PROXY_ADDR, recv_head,
};

#[test]
fn faulty_check_service_denies_in_time() {
    assert_faults_deny_in_time("grpc", "", Fault::grpc_gibibyte());
    assert_faults_deny_in_time("http", "/verify", Fault::http_gibibyte());
    assert_faults_deny_in_time("opa+http", "/v1/data/egress", Fault::http_gibibyte());
}

fn assert_faults_deny_in_time(scheme: &str, rule: &str, gibibyte: Fault) {
    let stage = InterceptLab::new();
    let _origin = stage.start_nginx();
    let balancer = &stage.lab.balancer;
    let mut services = vec![("down", balancer.enter(unused_address))];
    for fault in [Fault::new("slow", |stream| hold_open(&stream)), gibibyte] {
        services.push((fault.name, balancer.enter(|| fault.serve())));
    }
    for (name, address) in services {
        let check = format!("--check={scheme}://{address}{rule}");
        let case = format!("{name}, {scheme}");
        // A busy machine may be late once; a proxy without a timeout is late each time.
        let in_time = (0..3).any(|_| {
            let proxy = stage.start_proxy(&[&check, "--allow-destination=10.81.0.0/24"]);
            denies_in_time(&stage.lab, &proxy, &case)
        });
        assert!(in_time, "{case}: too late each time");
    }
    assert_eq!(
        stage.scratch.read("access.log"),
        "",
        "nothing reached the origin"
    );
}

/// Sends many requests at once, which all wait for the check. Then sends more of them, when the circuit breaker is
/// open. Asserts that all are denied; returns whether in time.
fn denies_in_time(lab: &Lab, proxy: &Process, case: &str) -> bool {
    let (before, begun) = (peak_memory_kib(proxy), Instant::now());
    let (answers, delay) = with_wakeup_delay(|| send_at_once(lab));
    let limit = ANSWER_LIMIT + SCHEDULING_MARGIN + delay;
    for (answer, _) in &answers {
        assert!(answer.starts_with("HTTP/1.1 503 "), "{case}: {answer}");
    }
    let slowest = answers.iter().map(|(_, took)| *took).max();
    let slowest = slowest.expect("there are some");
    let grown = peak_memory_kib(proxy) - before;
    assert!(grown < MAX_GROWTH_KIB, "{case}: {grown} KiB");
    let ((mut took, asked), later_delay) = with_wakeup_delay(|| time_denials(lab, case));
    // One request a second may probe whether the service is back.
    assert!(asked <= begun.elapsed().as_secs(), "{case}: {asked} asked");
    took.sort();
    // A denial waits for nothing but the processor.
    let median = took[took.len() / 2];
    println!(
        "{case}: {slowest:?}, {grown} KiB; then {median:?}; wake-up delays {delay:?} and {later_delay:?}"
    );
    slowest <= limit && median < DENIAL_LIMIT + later_delay
}

/// Sends each request on a connection of its own; returns each response, and the time from the request's last
/// byte to it.
fn send_at_once(lab: &Lab) -> Vec<(String, Duration)> {
    let together = Barrier::new(REQUESTS);
    let request = || {
        let conn = Conn::connect(&lab.client, PROXY_ADDR);
        together.wait();
        conn.send(REQUEST);
        let sent = Instant::now();
        (recv_head(&conn), sent.elapsed())
    };
    thread::scope(|scope| {
        let requests: Vec<_> = (0..REQUESTS).map(|_| scope.spawn(request)).collect();
        requests
            .into_iter()
            .map(|request| request.join().expect("an answer"))
            .collect()
    })
}

/// Sends requests one after the other on one connection; returns the time of each, and how many of them the
/// service was asked about.
fn time_denials(lab: &Lab, case: &str) -> (Vec<Duration>, u64) {
    let mut asked = 0;
    let conn = Conn::connect(&lab.client, PROXY_ADDR);
    let mut time_request = || {
        let sent = Instant::now();
        conn.send(REQUEST);
        let answer = conn.recv_text_until(|text| text.ends_with("}\n"));
        let took = sent.elapsed();
        assert!(answer.starts_with("HTTP/1.1 503 "), "{case}: {answer}");
        asked += u64::from(!answer.contains("check_suspended"));
        took
    };
    let took = (0..20).map(|_| time_request()).collect();
    (took, asked)
}

/// Runs `work`. Also returns how long the proxy and its client may have waited for the processor: twice the longest
/// delay of a thread that only slept meanwhile. Twice, because both are woken at the end of a request.
fn with_wakeup_delay<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    const TICK: Duration = Duration::from_millis(1);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let clock = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !done.load(Relaxed) {
                let begun = Instant::now();
                thread::sleep(TICK);
                longest = longest.max(begun.elapsed() - TICK);
            }
            longest * 2
        });
        let result = work();
        done.store(true, Relaxed);
        (result, clock.join().expect("a clock"))
    })
}

/// The peak of the process's memory, in KiB.
fn peak_memory_kib(proxy: &Process) -> u64 {
    let text = proxy.status_field("VmHWM");
    let number = text.trim_end_matches(" kB").parse();
    number.expect("VmHWM in kB")
}

#[test]
fn requests_pass_once_the_check_service_is_back() {
    assert_recovers("grpc", "", || {
        let mut service = Service::ext_authz(CHECK);
        service.set_answer(r#"{"status": {}}"#);
        service
    });
    assert_recovers("http", "/verify", || {
        let mut service = Service::forward_auth(CHECK);
        service.set_answer(r#"{"status": 200, "headers": [], "body": ""}"#);
        service
    });
    assert_recovers("opa+http", "/v1/data/egress/allow", || {
        Opa::start_at(CHECK, "package egress\nallow := true\n")
    });
}

/// Stops the service and starts it again.
fn assert_recovers<T>(scheme: &str, rule: &str, start: impl Fn() -> T) {
    let check = format!("--check={scheme}://{CHECK}{rule}");
    let rig = InterceptRig::new(&[&check, ADMIN, LONG_CHECK_TIMEOUT]);
    let start = || rig.lab.balancer.enter(&start);
    let status = || rig.curl_status(&["http://a.test/echo"]);
    let suspended_is = |value: u8| {
        let sample = format!("peername_check_suspended {value}");
        rig.read_metrics().lines().any(|line| line == sample)
    };
    let service = start();
    assert_eq!(status(), 200);
    drop(service);
    for (answer, _) in send_at_once(&rig.lab) {
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    }
    assert!(suspended_is(1), "{}", rig.read_metrics());
    let _service = start();
    let back = Instant::now();
    wait_until("the service is asked again", || status() == 200);
    // The proxy probes the service once a second; the rest is for the probe and for curl.
    let took = back.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert!(suspended_is(0), "{}", rig.read_metrics());
    assert_eq!([(); 20].map(|()| status()), [200; 20]);
    rig.proxy.wait_logged("the check service answers again");
}

const REQUEST: &[u8] = b"GET http://a.test/echo HTTP/1.1\r\nHost: a.test\r\n\r\n";
const REQUESTS: usize = 50;
/// The default of --check-timeout (500 ms), and a margin for the rest.
const ANSWER_LIMIT: Duration = Duration::from_millis(510);
/// The longest median of denials by the open circuit breaker, which does not ask the service.
const DENIAL_LIMIT: Duration = Duration::from_millis(5);
/// Fifty responses are due at one moment, and wait for two processors that other tests use, too.
const SCHEDULING_MARGIN: Duration = Duration::from_millis(100);
/// Room for the connections of all requests, on both sides, each with as much of a response as is read (64 KiB) and the
/// buffers on the path.
const MAX_GROWTH_KIB: u64 = 16 << 10;
const CHECK: SocketAddr = v4([127, 0, 0, 1], 9191);
const ADMIN: &str = "--admin=127.0.0.1:9300";

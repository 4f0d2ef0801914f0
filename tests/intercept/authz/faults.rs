//! Faults of the check service: every request is denied until the service is back.

use std::net::{SocketAddr, TcpListener};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::addr::v4;
use crate::harness::check::service::{Opa, Service};
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, wait_until};
use crate::harness::rig::intercept::{InterceptRig, LONG_CHECK_TIMEOUT, PROXY_ADDR, recv_head};

/// Sends each request on a connection of its own, all together; returns the responses.
fn send_at_once(lab: &Lab) -> Vec<String> {
    let together = Barrier::new(REQUESTS);
    let request = || {
        let conn = Conn::connect(&lab.client, PROXY_ADDR);
        together.wait();
        conn.send(b"GET http://a.test/echo HTTP/1.1\r\nHost: a.test\r\n\r\n");
        recv_head(&conn)
    };
    thread::scope(|scope| {
        let requests: Vec<_> = (0..REQUESTS).map(|_| scope.spawn(request)).collect();
        requests
            .into_iter()
            .map(|request| request.join().expect("an answer"))
            .collect()
    })
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
    for answer in send_at_once(&rig.lab) {
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

#[test]
fn warning_names_another_cause_at_once() {
    let rig = InterceptRig::new(&[
        &format!("--check=http://{CHECK}/verify"),
        LONG_CHECK_TIMEOUT,
    ]);
    let mut service = rig.lab.balancer.enter(|| Service::forward_auth(CHECK));
    service.set_answer(r#"{"status": 500, "headers": [], "body": ""}"#);
    let status = || rig.curl_status(&["http://a.test/echo"]);
    assert_eq!([status(), status()], [503, 503]);
    drop(service);
    assert_eq!(status(), 503);
    for cause in ["the check service reports an error", "connecting to"] {
        rig.proxy
            .wait_logged(&format!("a request is denied unchecked: {cause}"));
    }
}

/// The service accepts connections and does not answer. Checks that wait for a permit end with their timeout, too.
#[test]
fn checks_that_queue_for_a_service_that_hangs_are_denied_in_time() {
    let check = format!("--check=http://{CHECK}/verify");
    let rig = InterceptRig::new(&[&check, ADMIN, "--check-timeout=1s", "--check-concurrency=1"]);
    let _silent = rig
        .lab
        .balancer
        .enter(|| TcpListener::bind(CHECK).expect("a service"));
    let started = Instant::now();
    for answer in send_at_once(&rig.lab) {
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    let metrics = rig.read_metrics();
    let count = |outcome: &str| -> usize {
        let name = format!("peername_check_total{{outcome=\"{outcome}\"}} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
        value.map_or(0, |value| value.parse().expect("a number"))
    };
    assert!(count("busy") > 0, "{metrics}");
    assert_eq!(count("busy") + count("timeout"), REQUESTS, "{metrics}");
}

const REQUESTS: usize = 50;
const CHECK: SocketAddr = v4([127, 0, 0, 1], 9191);
const ADMIN: &str = "--admin=127.0.0.1:9300";

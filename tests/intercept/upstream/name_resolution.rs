//! Name resolution: slow name servers, single flight.

use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::lab::{assert_contains, assert_within, wait_until};
use crate::harness::rig::intercept::InterceptLab;

/// A client may have only a few lookups at a time, so those at a silent name server don't occupy all threads.
#[test]
fn silent_name_server_delays_only_its_own_names() {
    peername_sys::process::limits::raise_open_files().expect("descriptors for many clients");
    let options = ["--workers=1", "--connect-timeout=6s"];
    let (_names, rig) = InterceptLab::new().start_with_name_server(SILENT, &options);
    rig.lab.client.add_addresses("eth0", &["203.0.113.10/24"]);
    let ask = |n| {
        let request = format!("GET http://{n}.slow.test/ HTTP/1.1\r\nHost: {n}.slow.test\r\n\r\n");
        rig.connect_and_send(request.as_bytes())
    };
    // More than a worker has threads for.
    let waiting: Vec<_> = (0..600).map(ask).collect();
    // By then each lookup has a thread, or waits for one.
    sleep(Duration::from_millis(700));
    let other = ["--interface", "203.0.113.10", "http://a.test/echo"];
    assert!(rig.curl(&other).starts_with("GET a.test "));
    for conn in &waiting {
        conn.recv_text_until(|text| text.contains("dns_timeout"));
    }
}

#[test]
fn stop_does_not_wait_for_a_silent_name_server() {
    let options = ["--workers=1", "--drain=1s"];
    let (names, mut rig) = InterceptLab::new().start_with_name_server(SILENT, &options);
    let request = b"GET http://slow.test/ HTTP/1.1\r\nHost: slow.test\r\n\r\n";
    let _waiting = rig.connect_and_send(request);
    names.wait_logged("asked");
    rig.proxy.signal(Signal::TERM);
    let ended = rig.proxy.wait_exit(Duration::from_secs(3));
    assert!(ended.is_some(), "it waits for a name");
}

/// Single flight: of concurrent lookups of one name, only one asks the name server.
#[test]
fn concurrent_lookups_of_a_name_share_one_query() {
    let (names, rig) = InterceptLab::new().start_with_name_server(SLOW, &["--workers=2"]);
    rig.lab.client.add_addresses("eth0", &["203.0.113.10/24"]);
    let get = |rest: &[&str]| {
        let urls = ["http://slow.test/echo"; 20];
        let parallel = ["--parallel", "--parallel-immediate", "--parallel-max", "20"];
        rig.curl(&[&parallel, rest, &urls].concat())
    };
    let answers = thread::scope(|scope| {
        let other = scope.spawn(|| get(&["--interface", "203.0.113.10"]));
        [get(&[]), other.join().expect("answers")].concat()
    });
    assert_eq!(answers.matches("GET slow.test ").count(), 40, "{answers}");
    let assert_queries = |times: usize| {
        let count = || names.log().matches("asked").count();
        wait_until("the queries", || count() >= times);
        assert_eq!(count(), times, "{}", names.log());
    };
    // A and AAAA.
    assert_queries(2);
    // A name is looked up again after its answer: no cache.
    rig.curl(&["-H", "Connection: close", "http://slow.test:8081/echo"]);
    assert_queries(4);
}

/// Happy Eyeballs: the address that comes first does not answer, and the kernel would give it up after three seconds.
#[test]
fn address_that_does_not_answer_delays_little() {
    let stage = InterceptLab::new();
    let hosts = stage.scratch.read("hosts") + "2001:db8:81::dead dual.test\n10.81.0.1 dual.test\n";
    stage.scratch.write("hosts", &hosts);
    // An address of the same scope for the proxy, so that IPv6 comes first (RFC 6724).
    let host = &stage.lab.balancer;
    host.add_addresses("lan", &["2001:db8:81::2/64"]);
    let networks =
        ["10.81.0.0/24", "2001:db8:81::/64"].map(|net| format!("--allow-destination={net}"));
    let rig = stage.start(&networks.each_ref().map(String::as_str));
    assert_within(3, Duration::from_millis(1500), || {
        // Otherwise the next request would reuse the connection.
        let close = ["-H", "Connection: close"];
        let begun = Instant::now();
        let answer = rig.curl(&[&close[..], &["http://dual.test:8081/echo"]].concat());
        assert!(answer.starts_with("GET dual.test"), "{answer}");
        begun.elapsed()
    });
    let tried = rig
        .lab
        .balancer
        .run("ip", &["-6", "neigh", "show", "2001:db8:81::dead"]);
    assert_contains(&tried, &["2001:db8:81::dead"]);
}

/// Answers each query after six seconds: 10.81.0.1, and no IPv6 address.
const SLOW: &str = include_str!("name_resolution/slow.py");

const SILENT: &str = include_str!("name_resolution/silent.py");

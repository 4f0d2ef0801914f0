//! Shortage of descriptors and of epoll watches.

use std::time::Duration;

use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::conn::{Conn, End};
use crate::harness::lab::failing::no_epoll_watches_from;
use crate::harness::lab::{Process, failing_calls, wait_until};
use crate::harness::rig::intercept::{InterceptLab, InterceptRig, PROXY_ADDR, recv_head};
use crate::intercept::upstream::reuse::start_streams;

/// A crowd takes all descriptors; later clients wait or get an error, and afterwards all clients are served.
#[test]
fn proxy_recovers_from_exhausted_descriptors() {
    let mut rig = InterceptLab::new().start_through(&["prlimit", "--nofile=96"], &["--workers=1"]);
    let crowd: Vec<_> = (0..100)
        .filter_map(|_| {
            // Some are reset at once, because this client has its share already.
            let conn = Conn::try_connect(&rig.lab.client, PROXY_ADDR)?;
            conn.send_if_open(b"CONNECT a.test:443 HTTP/1.1\r\n\r\n");
            Some(conn)
        })
        .collect();
    assert!(rig.proxy.is_alive(), "{}", rig.proxy.log());
    drop(crowd);
    assert!(
        rig.curl(&["https://a.test/echo"])
            .starts_with("GET a.test ")
    );
}

/// The kernel grants this process no more epoll watches: later connections are closed and counted.
#[test]
fn exhausted_epoll_watches_refuse_only_new_connections() {
    let calls = no_epoll_watches_from(60);
    let failing_calls = failing_calls(&calls);
    let rig = InterceptLab::new()
        .start_through(&failing_calls, &["--workers=1", "--admin=127.0.0.1:9300"]);
    rig.proxy.wait_started();
    let idle = rig.proxy.count_fds();
    let try_open = || {
        let conn = Conn::connect(&rig.lab.client, PROXY_ADDR);
        conn.is_open_after(Duration::from_millis(100))
            .then_some(conn)
    };
    let mut crowd: Vec<Conn> = std::iter::from_fn(try_open).collect();
    let before = crowd.len();
    // A busy proxy may close a connection after it was counted as open. It counts as refused, like the one that ended the loop.
    crowd.retain(|conn| conn.is_open_after(Duration::from_millis(1)));
    assert!((2..50).contains(&crowd.len()), "{} idle", crowd.len());
    let refused = 1 + before - crowd.len();
    drop(crowd);
    wait_until("all connections are closed", || {
        rig.proxy.count_fds() <= idle
    });
    assert!(try_open().is_some());
    let failed = "peername_intercept_connections_failed_total{reason=\"local_error\"}";
    let failed = format!("{failed} {refused}");
    let metrics = rig.read_metrics();
    assert!(metrics.lines().any(|line| line == failed), "{metrics}");
}

/// One client asks for more requests at a time than there are descriptors. It gets errors, and descriptors
/// are left for others.
#[test]
fn one_http2_client_cannot_take_all_descriptors() {
    let (rig, limit) = start_short_of_descriptors();
    let lines = rig.wait_audit_lines("/slow", 1);
    assert!(
        lines.iter().any(|line| line["code"] == "proxy_full"),
        "{lines:?}"
    );
    assert!(limit > 10, "{limit} connections");
    assert!(!rig.proxy.log().contains("Too many open files"));
}

/// Idle connections are evicted for new ones: those of the shared pool, and those leased to a client that is
/// still connected.
#[test]
fn idle_connections_are_evicted_first() {
    for credentials in ["", "Authorization: Negotiate YQ==\r\n"] {
        let (rig, limit) = start_short_of_descriptors();
        let client = Conn::connect(&rig.lab.client, PROXY_ADDR);
        let ups: Vec<_> = (9101..)
            .take(limit)
            .map(|port| {
                let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], port));
                let request = format!(
                    "GET http://a.test:{port}/ HTTP/1.1\r\nHost: a.test:{port}\r\n{credentials}\r\n"
                );
                client.send(request.as_bytes());
                let up = origin.accept();
                recv_head(&up);
                up.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                assert!(recv_head(&client).starts_with("HTTP/1.1 200 "));
                up
            })
            .collect();
        assert_eq!(rig.curl_status(&["https://a.test/echo"]), 200);
        assert_eq!(
            ups[0].wait_closed().0,
            End::Fin,
            "the one that has been idle longest"
        );
    }
}

/// The origin answers at once, and reads on: the exchanges and their connections last as long as the uploads.
#[test]
fn uploads_that_were_answered_early_count_against_their_clients_share() {
    let through = ["prlimit", "--nofile=128"];
    let args = ["--workers=1", "--allow-destination=10.81.0.1:9001"];
    let rig = InterceptLab::new().start_through(&through, &args);
    let _origin = rig.start_python_origin(include_str!("upstream/early_reader.py"));
    let steps = ["post", "/upload"].repeat(100);
    let client = start_streams(&rig, "a.test:9001", &steps);
    let lines = rig.wait_audit_lines("/upload", 100);
    drop(client);
    let refused = lines.iter().filter(|line| line["code"] == "proxy_full");
    assert!(refused.count() > 50, "{lines:?}");
    assert!(!rig.proxy.log().contains("Too many open files"));
    // The client has left, and so its connections to the origin are closed.
    wait_until("the end of the connections", || {
        rig.curl_status(&["https://a.test:9001/"]) == 200
    });
}

/// A name has six addresses that do not answer, and each request tries them with a socket for each.
#[test]
fn dead_addresses_of_one_name_cannot_take_all_descriptors() {
    let stage = InterceptLab::new();
    let dead: String = (81..=86)
        .map(|last| format!("10.81.0.{last} dead.test\n"))
        .collect();
    let hosts = stage.scratch.read("hosts") + &dead;
    stage.scratch.write("hosts", &hosts);
    let through = ["prlimit", "--nofile=128"];
    let args = [
        "--workers=1",
        "--admin=127.0.0.1:9300",
        "--connect-timeout=3s",
    ];
    let rig = stage.start_through(&through, &args);
    rig.lab.client.add_addresses("eth0", &["203.0.113.10/24"]);
    let _crowd: Vec<_> = (0..30)
        .filter_map(|_| {
            // Some are reset at once, because this client has its share already.
            let conn = Conn::try_connect(&rig.lab.client, PROXY_ADDR)?;
            conn.send_if_open(b"GET http://dead.test/ HTTP/1.1\r\nHost: dead.test\r\n\r\n")
                .then_some(conn)
        })
        .collect();
    // Requests of another client are served from the first attempt to the last.
    let no_attempt = "peername_intercept_upstream_connections{state=\"in_use\"} 0";
    wait_until("the end of the attempts", || {
        let other = ["--interface", "203.0.113.10", "http://a.test/echo"];
        assert_eq!(rig.curl_status(&other), 200);
        let mut lines = rig.proxy.json_lines();
        lines.retain(|line| line["path"] == "/");
        lines.len() >= 10 && rig.read_metrics().lines().any(|line| line == no_attempt)
    });
    let lines = rig.wait_audit_lines("/", 10);
    assert!(
        lines.iter().all(|line| line["code"] != "proxy_exhausted"),
        "{lines:?}"
    );
    assert!(!rig.proxy.log().contains("Too many open files"));
}

/// Starts a proxy that has few descriptors. Asserts that a request of a client that uses its share of the connections to origins
/// gets an error, and one of another client a connection; returns the limit of these.
fn start_short_of_descriptors() -> (InterceptRig, usize) {
    let through = ["prlimit", "--nofile=128"];
    let args = ["--workers=1", "--allow-destination=10.81.0.1:9001"];
    let rig = InterceptLab::new().start_through(&through, &args);
    let urls: Vec<_> = (0..60).map(|_| "https://h1.test/slow").collect();
    let parallel = ["--parallel", "--parallel-max", "60", "--max-time", "60"];
    let ca = rig.scratch.path_text("ca.pem");
    let proxy = format!("http://{PROXY_ADDR}");
    let common = ["-sS", "--noproxy", "", "--proxy", &proxy, "--cacert", &ca];
    let args = [&common[..], &parallel, &urls[..]].concat();
    let crowd = Process::start(&rig.lab.client, "curl", &args);
    rig.wait_audit_lines("/slow", 1);
    // Another connection of the client is still admitted, and its request gets an error.
    let problem = rig.curl_problem(&["http://a.test/echo"]);
    assert_eq!(problem["code"], "proxy_full", "{problem}");
    let detail = problem["detail"].as_str().expect("a detail");
    let limit = detail
        .split(' ')
        .find_map(|word| word.parse().ok())
        .expect("a number");
    rig.lab.client.add_addresses("eth0", &["203.0.113.10/24"]);
    let from_other_client = ["--interface", "203.0.113.10", "http://a.test/echo"];
    assert_eq!(rig.curl_status(&from_other_client), 200);
    // All requests have been read when those over the limit have their errors.
    rig.wait_audit_lines("/slow", urls.len() - limit);
    drop(crowd);
    rig.wait_audit_lines("/slow", urls.len());
    wait_until("the end of the crowd's connections", || {
        rig.curl_status(&["http://a.test/echo"]) == 200
    });
    (rig, limit)
}

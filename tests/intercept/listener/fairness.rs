//! Fairness: a client that takes all it can get does not keep others from being served.

use std::time::{Duration, Instant};

use data_encoding::BASE64;

use crate::harness::conn::Conn;
use crate::harness::rig::intercept::{InterceptLab, InterceptRig, PROXY_ADDR};

/// A connection without a request head, or with one that stays incomplete, is closed.
#[test]
fn request_head_has_a_deadline() {
    let rig = InterceptRig::new(&["--admin=127.0.0.1:9300", "--idle-timeout=60s"]);
    let kept = rig.connect_and_send(b"GET http://a.test/echo HTTP/1.1\r\nHost: a.test\r\n\r\n");
    kept.recv_text_until(|text| text.contains("GET a.test"));
    let slow: [&[u8]; 3] = [
        b"",
        b"GET http://a.test/echo HTTP/1.1\r\nHost: a.te",
        b"CONNECT a.test:443 HTTP/1.1\r\nX-Slow: ",
    ];
    let start = Instant::now();
    let slow = slow.map(|bytes| rig.connect_and_send(bytes));
    // A head that is half sent on a connection that has been served.
    kept.send(b"GET http://a.test/ec");
    for conn in slow.iter().chain([&kept]) {
        conn.recv_to_end();
        let took = start.elapsed();
        assert!(took < Duration::from_secs(13), "closed after {took:?}");
    }
    assert!(start.elapsed() > Duration::from_secs(9));
    let late = "connections_failed_total{reason=\"head_timeout\"} 4";
    let metrics = rig.read_metrics();
    assert!(metrics.contains(late), "{metrics}");
}

#[test]
fn one_client_cannot_take_all_connections() {
    let limit = ["prlimit", "--nofile=1024:1024"];
    let rig = InterceptLab::new().start_through(&limit, &[]);
    rig.lab.client.add_addresses("eth0", &["203.0.113.10/24"]);
    let greedy: Vec<_> = (0..800)
        .filter_map(|_| Conn::try_connect(&rig.lab.client, PROXY_ADDR))
        .collect();
    let start = Instant::now();
    let from_other_client = ["--interface", "203.0.113.10", "--max-time", "5"];
    for _ in 0..10 {
        let answer = rig.curl(&[&from_other_client[..], &["https://a.test/"]].concat());
        assert_eq!(answer, "hello\n");
    }
    assert!(start.elapsed() < Duration::from_secs(5));
    rig.proxy
        .wait_logged("more than twice as many as the free file descriptors allow");
    drop(greedy);
}

/// Hashing a password is slow on purpose. A client that sends wrong passwords delays only itself.
#[test]
fn passwords_of_one_client_do_not_delay_others() {
    let stage = InterceptLab::new();
    let entry = |name: &str| {
        let args = ["-nbBC", "11", name, "secret"];
        stage.lab.client.run("htpasswd", &args)
    };
    let users = stage
        .scratch
        .write("users", &format!("{}{}", entry("ann"), entry("bob")));
    let rig = stage.start(&["--proxy-auth", &users]);
    rig.lab.client.add_addresses("eth0", &["203.0.113.10/24"]);
    let from_other_client = ["--interface", "203.0.113.10", "--proxy-user"];
    let ask = |user| {
        let start = Instant::now();
        let status =
            rig.curl_status(&[&from_other_client[..], &[user, "http://a.test/echo"]].concat());
        (status, start.elapsed())
    };
    let (status, alone) = ask("ann:secret");
    assert_eq!(status, 200);
    let flood: Vec<_> = (0..200)
        .map(|n| {
            let credentials = BASE64.encode(format!("ann:wrong{n}").as_bytes());
            let request = format!(
                "GET http://a.test/flood HTTP/1.1\r\nHost: a.test\r\nProxy-Authorization: Basic {credentials}\r\n\r\n"
            );
            rig.connect_and_send(request.as_bytes())
        })
        .collect();
    // A bounded number of requests wait for the hash; the others are refused at once.
    let lines = rig.wait_audit_lines("/flood", 100);
    let refused = lines
        .iter()
        .filter(|line| line["code"] == "too_many_passwords");
    assert!(refused.count() >= 100, "{lines:?}");
    let (status, took) = ask("bob:secret");
    println!("alone {alone:?}, beside the flood {took:?}");
    assert_eq!(status, 200);
    assert!(took < 5 * alone + Duration::from_secs(1), "{took:?}");
    // Credentials that were verified before wait for no hash, whichever client sends them.
    assert_eq!(
        rig.curl_status(&["--proxy-user", "bob:secret", "http://a.test/echo"]),
        200
    );
    drop(flood);
}

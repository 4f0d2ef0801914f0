//! Transparent listeners, PROXY headers in both directions, passthrough.

use serde_json::Value;

use crate::harness::addr::{fresh_client_v4, v4};
use crate::harness::admin::ADMIN;
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::header_bytes;
use crate::harness::lab::{assert_contains, wait_until};
use crate::harness::page::Page;
use crate::harness::peername::words;
use crate::harness::rig::intercept::{
    CLIENT_IP, InterceptLab, InterceptRig, PROXY_ADDR, recv_head,
};

/// The client has no proxy configured and connects to the origin's address. The rules are those of docs/intercept.md.
#[test]
fn redirected_connections_reach_their_original_destination() {
    let page = Page::new(include_str!("../../../docs/intercept.md"));
    let stage = InterceptLab::new();
    stage
        .lab
        .client
        .ip("route add 10.81.0.0/24 via 203.0.113.1");
    for rule in page.section("## Transparent clients").commands() {
        stage.lab.balancer.run("sh", &["-ec", &rule]);
    }
    let rig = stage.start(&["--transparent=203.0.113.1:8081"]);
    for url in ["https://a.test/echo", "http://a.test/echo"] {
        let answer = rig.curl_without_proxy(&[url]);
        assert!(answer.starts_with("GET a.test "), "{answer}");
    }
    // With TLS the certificate proves the host, so any address will do. Without TLS the proxy resolves the name itself.
    let elsewhere = rig.curl_without_proxy(&[
        "--connect-to",
        "h1.test:443:10.81.0.1:443",
        "https://h1.test/echo",
    ]);
    assert!(elsewhere.starts_with("GET h1.test HTTP/2.0"), "{elsewhere}");
    let wrong = rig.curl_without_proxy(&[
        "--connect-to",
        "other.test:443:10.81.0.1:443",
        "https://other.test/",
    ]);
    assert_contains(&wrong, &["upstream_tls_wrong_name"]);
}

/// The family of the connection, not that of the listener, decides how the original destination is looked up.
#[test]
fn dual_stack_listener_takes_what_ipv4_rules_redirect() {
    let stage = InterceptLab::new();
    let rig = start_transparent_on(stage, "--transparent=[::]:8081", "redirect to :8081");
    let answer = rig.curl_without_proxy(&["http://a.test/echo"]);
    assert!(answer.starts_with("GET a.test "), "{answer}");
}

/// No rule has redirected such a connection, so its Host field would choose the origin, as with an open proxy.
#[test]
fn client_that_connects_to_a_transparent_listener_itself_is_refused() {
    let rig = InterceptLab::new().start(&["--transparent=203.0.113.1:80", ADMIN]);
    let request = b"GET /echo HTTP/1.1\r\nHost: a.test\r\n\r\n";
    Conn::assert_reset(&rig.lab.client, v4([203, 0, 113, 1], 80), request);
    let failed = "connections_failed_total{reason=\"not_redirected\"} 1";
    assert_contains(&rig.read_metrics(), &[failed]);
}

#[test]
fn tproxy_connections_reach_their_original_destination() {
    let rules = "ip rule add fwmark 1 lookup 123
        ip route add local 0.0.0.0/0 dev lo table 123";
    let stage = InterceptLab::new();
    stage.lab.balancer.run("sh", &["-ec", rules]);
    let rig = start_transparent_on(
        stage,
        "--transparent=127.0.0.1:8081",
        "meta mark set 1 tproxy to 127.0.0.1:8081",
    );
    let answer = rig.curl_without_proxy(&["https://a.test/echo", "http://a.test/echo"]);
    assert_eq!(answer.matches("GET a.test ").count(), 2, "{answer}");
}

/// The first segment may be one byte long.
#[test]
fn first_bytes_of_a_tunnel_may_come_one_by_one() {
    let rig = InterceptRig::new(&[]);
    let conn = rig.connect_and_send(b"CONNECT a.test:80 HTTP/1.1\r\n\r\n");
    assert!(recv_head(&conn).starts_with("HTTP/1.1 200 "));
    for byte in b"POST /echo HTTP/1.1\r\nHost: b.test\r\nContent-Length: 0\r\n\r\n" {
        conn.send(&[*byte]);
    }
    assert!(
        recv_head(&conn).starts_with("HTTP/1.1 403 "),
        "it is read as HTTP"
    );
}

#[test]
fn proxy_header_names_the_client() {
    let rig = InterceptRig::new(&[ADMIN, "--accept-proxy=203.0.113.0/24"]);
    let client = fresh_client_v4();
    for bytes in [
        header_bytes::v1(client, PROXY_ADDR),
        header_bytes::v2(client, PROXY_ADDR, &[]),
    ] {
        let request = b"GET http://a.test/echo HTTP/1.1\r\nHost: a.test\r\n\r\n";
        let conn = rig.connect_and_send(&[&bytes[..], request].concat());
        assert!(recv_head(&conn).starts_with("HTTP/1.1 200 "));
    }
    for line in rig.wait_audit_lines("/echo", 2) {
        assert_eq!(line["client"], client.to_string(), "{line}");
        assert!(
            line["peer"]
                .as_str()
                .is_some_and(|peer| peer.starts_with(CLIENT_IP)),
            "{line}"
        );
    }
    // A health check connects and closes. It is counted, but causes no warning.
    drop(Conn::connect(&rig.lab.client, PROXY_ADDR));
    wait_until("the health check", || {
        rig.read_metrics()
            .contains("connections_failed_total{reason=\"proxy_header\"} 1")
    });
    assert!(!rig.proxy.log().contains("connections refused"));
    let without_header =
        rig.connect_and_send(b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n");
    without_header.wait_closed();
    rig.proxy.wait_logged("--accept-proxy expects a header");
}

/// Two clients, one origin: each connection carries the header of one of them.
#[test]
fn outbound_header_names_the_client() {
    let rig = InterceptRig::new(&words(
        "--send-proxy=v2 --allow-destination=10.81.0.1:9001 --workers=1",
    ));
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    for _ in 0..2 {
        let request = b"GET http://a.test:9001/ HTTP/1.1\r\nHost: a.test:9001\r\n\r\n";
        let down = rig.connect_and_send(request);
        let up = origin.accept();
        // PP2_TYPE_AUTHORITY, and a length of 6 bytes.
        let authority = [&[2, 0, 6][..], b"a.test"].concat();
        let expected = header_bytes::v2(down.local_addr(), v4([10, 81, 0, 1], 9001), &authority);
        assert_eq!(up.recv(expected.len()), expected);
        assert!(recv_head(&up).starts_with("GET / HTTP/1.1\r\n"));
        up.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert!(recv_head(&down).starts_with("HTTP/1.1 200 "));
    }
}

#[test]
fn passthrough_tunnel_is_not_intercepted() {
    let rig = InterceptRig::new(&["--passthrough=a.test", "--passthrough=*.nothing.test"]);
    let root = rig.scratch.path_text("root.pem");
    let answer = rig.curl(&["--cacert", &root, "https://a.test/echo"]);
    assert!(answer.starts_with("GET a.test HTTP/2.0 "), "{answer}");
    assert!(
        rig.curl(&["https://b.test/echo"])
            .starts_with("GET b.test ")
    );
    let sni = rig.curl_problem(&[
        "--connect-to",
        "b.test:443:a.test:443",
        "https://b.test/echo",
    ]);
    assert_eq!(
        sni["code"], "name_mismatch",
        "a tunnel for one name is none for another"
    );
    let is_passed_through =
        |line: &Value| line["how"] == "passthrough" && line["connect"] == "a.test:443";
    assert!(
        rig.wait_audit_lines("", 1).iter().any(is_passed_through),
        "{}",
        rig.proxy.log()
    );
}

/// curl without the authority stands for a program with a pinned certificate.
#[test]
fn client_that_rejects_the_authority_three_times_is_passed_through() {
    let rig = InterceptRig::new(&["--auto-passthrough"]);
    let root = rig.scratch.path_text("root.pem");
    let pinned = |host: &str| {
        let output = rig.try_curl(&["--cacert", &root, &format!("https://{host}/echo")]);
        output.status.success()
    };
    assert_eq!([0; 3].map(|_| pinned("a.test")), [false; 3]);
    rig.proxy.wait_logged("not opened for a day");
    assert_eq!([0; 2].map(|_| pinned("a.test")), [true; 2]);
    assert!(!pinned("b.test"), "another host is another matter");
    // A success of another program in between shows that the client can be served, so the count of failures starts
    // again.
    assert!(!pinned("b.test"));
    assert!(
        rig.curl(&["https://b.test/echo"])
            .starts_with("GET b.test ")
    );
    assert!(!pinned("b.test") && !pinned("b.test"));
}

/// Starts a transparent listener to which rules redirect what the client sends to ports 80 and 443 of the origins.
pub(crate) fn start_transparent(listen: &str, verdict: &str) -> InterceptRig {
    start_transparent_on(InterceptLab::new(), listen, verdict)
}

fn start_transparent_on(stage: InterceptLab, listen: &str, verdict: &str) -> InterceptRig {
    let lab = &stage.lab;
    lab.client.ip("route add 10.81.0.0/24 via 203.0.113.1");
    let hook = if verdict.contains("tproxy") {
        "type filter hook prerouting priority mangle;"
    } else {
        "type nat hook prerouting priority dstnat;"
    };
    let filter = "iif wan ip daddr 10.81.0.0/24 tcp dport { 80, 443 }";
    let rules =
        format!("table ip intercept {{\n chain in {{\n {hook}\n {filter} {verdict}\n }}\n }}");
    lab.balancer.nft(&rules);
    stage.start(&[listen])
}

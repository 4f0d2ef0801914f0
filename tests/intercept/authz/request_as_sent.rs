//! The check sees the request as it will be sent, and a denial is recognisable.

use super::decisions::{CHECK_OPTION, CHECK_SERVICE, start_check, start_with_check};
use crate::harness::lab::assert_contains;
use crate::harness::rig::intercept::{
    InterceptLab, LONG_CHECK_TIMEOUT, WEBSOCKET_SERVER, recv_head,
};

/// An extended CONNECT becomes a GET, and a rule about GET applies to it.
#[test]
fn websocket_over_http2_is_checked_as_its_origin_gets_it() {
    let (rig, check) = start_with_check(&["--allow-destination=10.81.0.1:9001"]);
    let _server = rig.start_python_origin(WEBSOCKET_SERVER);
    assert_eq!(rig.websocket_over_http2("/chat"), "one two");
    assert_eq!(rig.websocket_over_http2("/secret"), "403");
    check.wait_logged("request GET https a.test:9001 /secret ");
}

/// The check service denies requests with X-Open. If Connection names X-Open, it is a hop-by-hop header, and the service does
/// not see it.
#[test]
fn hop_by_hop_headers_are_not_shown_to_the_check() {
    let (rig, _check) = start_with_check(&[]);
    for version in ["--http1.1", "--http2"] {
        let args = ["-H", "X-Open: 1", version, "https://a.test/echo"];
        assert_eq!(rig.curl_status(&args), 403, "{version}");
    }
    let named = ["-H", "X-Open: 1", "-H", "Connection: x-open", "--http1.1"];
    assert_eq!(
        rig.curl_status(&[&named[..], &["https://a.test/echo"]].concat()),
        200
    );
}

/// A URL may have a query and no path. The request to the origin then has the path `/`, and the check sees that path.
#[test]
fn path_is_checked_as_it_is_sent() {
    let (rig, check) = start_with_check(&[]);
    let request = b"GET http://a.test?token=secret HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let conn = rig.connect_and_send(request);
    assert!(recv_head(&conn).starts_with("HTTP/1.1 403 "));
    check.wait_logged("request GET http a.test /?token=secret ");
}

/// A browser gets the denial of its CONNECT inside the tunnel. The CONNECT is checked again with each request.
#[test]
fn denied_tunnel_is_checked_again() {
    let stage = InterceptLab::new();
    let rig = stage.start(&[CHECK_OPTION, LONG_CHECK_TIMEOUT]);
    let request = "GET /echo HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let browser = "CONNECT a.test:80 HTTP/1.1\r\nUser-Agent: Mozilla/5.0\r\n\r\n";
    let conn = rig.connect_and_send(browser.as_bytes());
    assert!(recv_head(&conn).starts_with("HTTP/1.1 200 "));
    conn.send(request.as_bytes());
    conn.recv_text_until(|text| text.contains("check_failed"));
    let _check = start_check(&rig.lab, &rig.scratch, CHECK_SERVICE);
    conn.send(request.as_bytes());
    conn.recv_text_until(|text| text.contains("GET a.test "));
    // The tunnel is checked again, and not only the request.
    let other = "CONNECT b.test:80 HTTP/1.1\r\nUser-Agent: Mozilla/5.0\r\n\r\n";
    let conn = rig.connect_and_send(other.as_bytes());
    assert!(recv_head(&conn).starts_with("HTTP/1.1 200 "));
    for _ in 0..2 {
        conn.send(b"GET /echo HTTP/1.1\r\nHost: b.test\r\n\r\n");
        assert!(recv_head(&conn).contains("403 Forbidden"));
    }
}

/// A client that disconnects before the check's decision is logged with `left`, not as refused.
#[test]
fn client_that_leaves_is_not_logged_as_refused() {
    let stage = InterceptLab::new();
    let script = "import socket, time\n\
        s = socket.create_server(('127.0.0.1', 9191)); c = None\n\
        # A probe comes first.\n\
        while not (c and c.recv(1)): c = s.accept()[0]\n\
        print('asked'); time.sleep(1000)";
    let silent = start_check(&stage.lab, &stage.scratch, script);
    let rig = stage.start(&[CHECK_OPTION, "--check-timeout=60s"]);
    let request = b"GET http://a.test/left HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let conn = rig.connect_and_send(request);
    silent.wait_logged("asked");
    conn.reset();
    let line = &rig.wait_audit_lines("/left", 1)[0];
    assert_eq!(line["decision"], "left", "{line}");
}

/// A denial, whether its text is the check's or peername's, has peername's headers and is not cached.
#[test]
fn denial_is_distinct_from_an_origins_response() {
    let (rig, _check) = start_with_check(&[]);
    for (path, kind) in [
        ("secret", "application/problem+json"),
        ("secret/words", "text/x-words"),
    ] {
        let url = format!("https://a.test/{path}");
        let answer = rig.curl(&["-i", &url]);
        assert_contains(
            &answer,
            &[
                "x-peername-code: denied",
                "x-peername-request-id: ",
                "cache-control: no-store",
                "x-why: secret",
                &format!("content-type: {kind}"),
            ],
        );
        assert!(!answer.contains("max-age"), "{answer}");
    }
}

//! The line in the log of what came to nothing.

use super::rig::{PROXY, Rig, Stage, head};
use crate::addr::v4;
use crate::backend::Backend;
use crate::conn::Conn;

/// Whom it was to be sent to, wherever that failed; nobody, where there was no address to try.
#[test]
fn a_failed_request_names_who_was_tried() {
    let rig = Rig::new(&[]);
    for (url, path, code, tried) in [
        (
            "https://expired.test/certificate",
            "/certificate",
            "upstream_tls_expired",
            Some("10.81.0.1:443"),
        ),
        (
            "http://a.test:9/refused",
            "/refused",
            "connect_refused",
            Some("10.81.0.1:9"),
        ),
        (
            "https://a.test:80/handshake",
            "/handshake",
            "upstream_tls_handshake",
            Some("10.81.0.1:80"),
        ),
        (
            "https://private.test/forbidden",
            "/forbidden",
            "destination_not_public",
            None,
        ),
        ("http://nowhere.invalid/name", "/name", "dns_nxdomain", None),
    ] {
        assert_eq!(rig.problem(&[url])["code"], code, "{url}");
        let line = &rig.audit(path, 1)[0];
        assert_eq!(line["upstream"].as_str(), tried, "{line}");
    }
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    let request = b"GET http://a.test:9001/closed HTTP/1.1\r\nHost: a.test:9001\r\n\r\n";
    let client = Conn::open(&rig.lab.client, PROXY, request);
    let up = origin.accept();
    head(&up);
    drop(up);
    assert!(head(&client).contains("upstream_closed"));
    let line = &rig.audit("/closed", 1)[0];
    assert_eq!(line["upstream"], "10.81.0.1:9001", "{line}");
}

#[test]
fn a_parent_that_fails_is_who_was_tried() {
    let rig = Stage::new().start(&["--upstream-proxy=http://10.81.0.1:3129"]);
    for url in ["https://a.test/tried", "http://a.test/tried"] {
        let problem = rig.problem(&[url]);
        assert_eq!(problem["code"], "upstream_proxy_failed", "{problem}");
    }
    for line in rig.audit("/tried", 2) {
        assert_eq!(line["upstream"], "10.81.0.1:3129", "{line}");
    }
}

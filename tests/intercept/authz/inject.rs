//! Secrets that the proxy adds (`--inject`): the origin gets them, but neither the client, nor another host, nor a log does.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::decisions::{CHECK_OPTION, CHECK_SERVICE, start_check};
use crate::harness::conn::Conn;
use crate::harness::header_bytes;
use crate::harness::lab::assert_contains;
use crate::harness::peername::Peername;
use crate::harness::rig::intercept::{
    InterceptLab, InterceptRig, LONG_CHECK_TIMEOUT, PROXY_ADDR, recv_head,
};

const SECRET: &str = "treasure-1";

#[test]
fn origin_gets_the_secret_and_no_log_has_it() {
    let stage = InterceptLab::new();
    let check = start_check(&stage.lab, &stage.scratch, CHECK_SERVICE);
    let rig = start_with(
        stage,
        &[
            CHECK_OPTION,
            LONG_CHECK_TIMEOUT,
            "-vv",
            "--admin=127.0.0.1:9300",
        ],
    );
    let sent = |args: &[&str]| {
        let answer = rig.curl(args);
        let value = answer
            .split(" x=")
            .nth(1)
            .and_then(|rest| rest.split(" via=").next());
        value.unwrap_or_else(|| panic!("{answer}")).to_owned()
    };
    for version in ["--http1.1", "--http2"] {
        assert_eq!(sent(&[version, "https://a.test/echo"]), SECRET);
        // The secret replaces the client's own headers.
        let own = ["-H", "X-Mine: own", "-H", "x-mine: another"];
        assert_eq!(
            sent(&[&[version][..], &own, &["https://a.test/echo"]].concat()),
            SECRET
        );
        // The same host at another port, and without TLS.
        assert_eq!(
            rig.curl_status(&[version, "https://a.test:8443/slow-x"]),
            404
        );
        assert_eq!(sent(&[version, "http://a.test/echo"]), "");
        assert_eq!(
            sent(&[version, "-H", "X-Mine: own", "http://a.test/echo"]),
            "own"
        );
        assert_eq!(rig.curl_status(&[version, "https://a.test/secret"]), 403);
    }
    // An origin would return the secret to a TRACE.
    assert_eq!(
        rig.curl_status(&["-X", "TRACE", "https://a.test/echo"]),
        405
    );
    for path in ["metrics", "config", "connections", "status", ""] {
        let url = format!("http://127.0.0.1:9300/{path}");
        let page = rig
            .lab
            .balancer
            .run("curl", &["-sS", "--noproxy", "*", &url]);
        assert!(!page.contains(SECRET), "{path}: {page}");
    }
    let line = &rig.wait_audit_lines("/echo", 4)[0];
    assert_eq!(line["injected"], "x-mine", "{line}");
    let line = &rig.wait_audit_lines("/slow-x", 2)[0];
    assert_eq!(line.get("injected"), None, "{line}");
    let log = rig.proxy.log();
    assert!(!log.contains(SECRET), "{log}");
    assert!(!check.log().contains(SECRET));
}

/// Some servers take `X_Mine` and `X.Mine` for `X-Mine`, so a client could send a header of its own beside the secret.
#[test]
fn other_spellings_of_the_header_are_removed_and_trace_returns_no_secret() {
    let rig = start_with(InterceptLab::new(), &[]);
    let _origin = rig.start_python_origin(ECHOING);
    let ask = |args: &[&str]| {
        let answer = rig.curl(&[args, &["https://a.test:9001/"]].concat());
        answer.to_lowercase()
    };
    for version in ["--http1.1", "--http2"] {
        let spellings = ["X_Mine: own", "x.mine: own", "X_MINE: own", "X-Mine: own"];
        let headers = spellings.iter().flat_map(|header| ["-H", header]);
        let own: Vec<_> = [version].into_iter().chain(headers).collect();
        let answer = ask(&own);
        assert!(
            answer.contains("treasure-2") && !answer.contains("own"),
            "{answer}"
        );
        let others = ask(&[version, "-H", "X-Mine2: own", "-H", "XMine: own"]);
        assert_eq!(others.matches("own").count(), 2, "{others}");
        for method in ["TRACE", "trace", "Trace", "TRACK", "track"] {
            let answer = ask(&[version, "-X", method]);
            assert!(answer.starts_with(&method.to_lowercase()), "{answer}");
            assert!(!answer.contains("treasure"), "{method}: {answer}");
        }
    }
}

/// Another host does not get the secret: not as the next host of the same client, not by a Host field, and not after a
/// redirection.
#[test]
fn secret_does_not_follow_to_another_host() {
    let rig = start_with(InterceptLab::new(), &[]);
    // b.test is at the same address, and its certificate is the same.
    let both = rig.curl(&["--http2", "https://a.test/echo", "https://b.test/echo"]);
    assert_eq!(both.matches(SECRET).count(), 1, "{both}");
    let misdirected = [
        "--http2",
        "-H",
        "Host: b.test",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "https://a.test/echo",
    ];
    assert_eq!(rig.curl(&misdirected), "421");
    let server = rig.start_python_origin(REDIRECTING);
    let followed = rig.curl(&["-L", "https://a.test:9001/"]);
    assert!(
        followed.starts_with("GET b.test ") && !followed.contains("treasure"),
        "{followed}"
    );
    // The redirecting origin got its own secret.
    server.wait_logged("treasure-2");
}

/// The new secret is sent on open connections, too. The rule begins with `http:`, so the secret is sent without TLS.
#[test]
fn reload_reads_the_secret_again() {
    let stage = InterceptLab::new();
    let file = stage.scratch.write("plain", SECRET);
    let inject = format!("--inject=http://a.test=X-Mine@{file}");
    let rig = stage.start(&[&inject]);
    let client = Conn::connect(&rig.lab.client, PROXY_ADDR);
    let get = || {
        client.send(b"GET http://a.test/echo HTTP/1.1\r\nHost: a.test\r\n\r\n");
        client.recv_text_until(|text| text.contains(" proxy="))
    };
    assert!(get().contains(" x=treasure-1 "));
    rig.scratch.write("plain", "treasure-3\n");
    rig.proxy.reload("\"reloaded\"");
    let answer = get();
    assert_contains(&answer, &[" x=treasure-3 "]);
    rig.scratch.write("plain", "two\nlines\n");
    rig.proxy.reload("one line");
    assert!(get().contains(" x=treasure-3 "));
}

#[test]
fn file_that_others_may_read_is_warned_of() {
    let rig = start_with(InterceptLab::new(), &[]);
    let warning = "others may read this secret: chmod 600 ";
    assert!(!rig.proxy.log().contains(warning));
    let file = rig.scratch.path("secret");
    fs::set_permissions(file, Permissions::from_mode(0o644)).expect("chmod");
    rig.proxy.reload(warning);
}

/// Its TLS is not opened, so no header can be added.
#[test]
fn secret_for_a_host_that_is_passed_through_is_warned_of() {
    let rig = start_with(InterceptLab::new(), &["--passthrough=a.test"]);
    rig.proxy
        .wait_logged("--inject for a.test:443: --passthrough leaves the TLS of this host unopened");
}

/// The start fails, and no error quotes the secret.
#[test]
fn secret_or_header_that_can_not_be_added_is_refused() {
    let stage = InterceptLab::new();
    let ca = stage.scratch.path_text("ca");
    for (content, header, expected) in [
        ("", "X-Mine", "one line"),
        ("  \n", "X-Mine", "one line"),
        ("treasure\r\nX-Other: 1", "X-Mine", "one line"),
        ("treasure\u{7f}", "X-Mine", "one line"),
        (
            "treasure",
            "Content-Length",
            "not the name of a header that can be added",
        ),
        (
            "treasure",
            "Host",
            "not the name of a header that can be added",
        ),
    ] {
        let file = stage.scratch.write("bad", content);
        let inject = format!("--inject=a.test={header}@{file}");
        let args = ["intercept", "--ca", &ca, &inject];
        let errors = Peername::run_failing(&stage.lab.balancer, &args, 2);
        assert_contains(&errors, &[expected]);
        assert!(!errors.contains("treasure"), "{errors}");
    }
}

/// The secret belongs to the host of the request's target. A request whose Host field names another host is refused.
#[test]
fn host_of_a_request_alone_does_not_get_the_secret() {
    let rig = start_with(InterceptLab::new(), &["--accept-proxy=203.0.113.9"]);
    let request = b"GET http://b.test/echo HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let header = header_bytes::v2(crate::harness::addr::fresh_client_v4(), PROXY_ADDR, &[]);
    let bytes = [&header[..], request].concat();
    let conn = rig.connect_and_send(&bytes);
    assert!(recv_head(&conn).starts_with("HTTP/1.1 403 "));
    assert_eq!(rig.origin_log(), Vec::<String>::new());
}

/// Starts the proxy with a secret for a.test:443, and another for the port of the scripted origin.
fn start_with(stage: InterceptLab, args: &[&str]) -> InterceptRig {
    let write_private = |name: &str, text: &str| {
        let file = stage.scratch.write(name, text);
        fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("chmod");
        file
    };
    let https = format!(
        "--inject=A.test.=X-Mine@{}",
        write_private("secret", &format!("{SECRET}\n"))
    );
    let other_port = format!(
        "--inject=a.test:9001=X-Mine@{}",
        write_private("other", "treasure-2")
    );
    stage.start(&[&[&*https, &*other_port], args].concat())
}

const REDIRECTING: &str = include_str!("inject/redirecting.py");

/// Answers each method with the request.
const ECHOING: &str = include_str!("inject/echoing.py");

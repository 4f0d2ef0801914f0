//! Access rules: which clients may use the proxy.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::harness::addr::v4;
use crate::harness::header_bytes;
use crate::harness::lab::{assert_contains, assert_fields, stdout_text};
use crate::harness::page::Page;
use crate::harness::peername::Peername;
use crate::harness::rig::intercept::{InterceptLab, InterceptRig, PROXY_ADDR, recv_head};

/// A listener on an address that other hosts reach needs an access rule.
#[test]
fn proxy_without_access_rules_does_not_start() {
    let stage = InterceptLab::new();
    let ca = stage.scratch.path_text("ca");
    let listen = format!("--listen={PROXY_ADDR}");
    let start = |args: &[&str]| {
        let common = ["intercept", &listen, "--ca", &ca];
        Peername::run_failing(&stage.lab.balancer, &[&common, args].concat(), 2)
    };
    let errors = start(&[]);
    assert_contains(&errors, &["open proxy", "--allow-client", "--proxy-auth"]);
    let errors = start(&["--allow-client=example"]);
    assert_contains(&errors, &["--allow-client \"example\""]);
    let errors = start(&["--allow-client=any", "--accept-proxy=10.0.0.0/33"]);
    assert_contains(&errors, &["--accept-proxy \"10.0.0.0/33\""]);
    let users = stage.scratch.write("users", "ann:secret\n");
    let errors = start(&["--proxy-auth", &users]);
    assert!(
        errors.contains("users, line 1: not NAME:HASH") && !errors.contains("secret"),
        "{errors}"
    );
}

/// The client's address is the source in the header of a trusted balancer.
#[test]
fn client_is_admitted_by_its_address() {
    let rig = InterceptRig::new(&["--allow-client=198.51.100.7", "--accept-proxy=203.0.113.9"]);
    let request = b"GET http://a.test/echo HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
    let request_from = |ip: [u8; 4]| {
        let header = header_bytes::v2(v4(ip, 4711), PROXY_ADDR, &[]);
        rig.connect_and_send(&[&header[..], request].concat())
    };
    assert!(recv_head(&request_from([198, 51, 100, 7])).starts_with("HTTP/1.1 200 "));
    for _ in 0..3 {
        request_from([198, 51, 100, 8]).wait_reset();
    }
    let line = rig.proxy.wait_logged("not a network of --allow-client");
    assert_contains(&line, &["198.51.100.8"]);
    assert_eq!(rig.proxy.log().matches("--allow-client").count(), 1);
    assert_eq!(rig.wait_origin_log(1).len(), 1);
}

#[test]
fn client_is_admitted_by_its_name_and_password() {
    let stage = InterceptLab::new();
    let entry = |name: &str, password: &str| {
        stage
            .lab
            .client
            .run("htpasswd", &["-nbBC", "4", name, password])
    };
    let users = format!(
        "# people\n{}{}",
        entry("ann", "open:sesame"),
        entry("bob", "b")
    );
    let users = stage.scratch.write("users", &users);
    let rig = stage.start(&["--proxy-auth", &users]);
    let status = |user: &str, url: &str| {
        let write = [
            "-o",
            "/dev/null",
            "-w",
            "%{http_connect} %{http_code}",
            "-s",
        ];
        let user: &[&str] = if user.is_empty() {
            &[]
        } else {
            &["--proxy-user", user]
        };
        stdout_text(&rig.try_curl(&[&write[..], user, &[url]].concat()))
    };
    for wrong in ["", "ann:wrong", "carl:open:sesame", "ann:", ":open:sesame"] {
        assert_eq!(status(wrong, "https://a.test/echo"), "407 000", "{wrong}");
        assert_eq!(status(wrong, "http://a.test/echo"), "000 407", "{wrong}");
    }
    let challenge = rig.curl(&["-D", "-", "-o", "/dev/null", "http://a.test/echo"]);
    assert_contains(
        &challenge,
        &["proxy-authenticate: Basic realm=\"peername\""],
    );
    assert_eq!(
        status("ann:open:sesame", "https://a.test/echo?tunnel"),
        "200 200"
    );
    assert_eq!(status("bob:b", "http://a.test/put"), "000 200");
    assert_eq!(rig.wait_origin_log(2).len(), 2, "{:?}", rig.origin_log());
    // The first two attempts: without a name, and with a wrong password.
    for (path, connect) in [("", json!("a.test:443")), ("/echo", Value::Null)] {
        let lines = rig.wait_audit_lines(path, 2);
        // Clients begin without a password, and repeat the request with it.
        let expected = [(Value::Null, "INFO"), (json!("ann"), "WARN")];
        for (line, (user, level)) in lines.iter().zip(expected) {
            let expected = json!({
                "code": "proxy_auth_required", "host": "a.test", "tried_user": user, "level": level,
            });
            assert_fields(line, expected);
            assert_eq!(line["connect"], connect, "{line}");
            assert!(line["user"].is_null(), "{line}");
        }
    }
    // The audit line has the user's name; the password is logged nowhere.
    let lines = rig.wait_audit_lines("/echo", 1);
    assert!(
        lines
            .iter()
            .any(|line| line["user"] == "ann" && line["status"] == 200),
        "{lines:?}"
    );
    assert_eq!(rig.wait_audit_lines("/put", 1)[0]["user"], "bob");
    assert!(!rig.proxy.log().contains("sesame"));
    let problem = rig.curl_problem(&["--proxy-user", "ann:wrong", "http://a.test/detail"]);
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("password is wrong"), "{problem}");
    // On the connection of another user, too.
    let proxy = PROXY_ADDR.to_string();
    rig.lab
        .client
        .run("/usr/bin/python3", &["-c", TWO_USERS, &proxy]);
    let line = &rig.wait_audit_lines("/second", 1)[0];
    assert_fields(line, json!({"status": 407, "tried_user": "ann"}));
    assert!(line["user"].is_null(), "{line}");
    let refused = rig.proxy.wait_json("the refused target", |line| {
        line["message"] == "request" && line["status"] == 400
    });
    assert_eq!(refused["user"], "ann", "{refused}");
    // The origin gets no credentials of the proxy's.
    let echo = rig.curl(&["--proxy-user", "ann:open:sesame", "http://a.test/echo"]);
    assert!(!echo.contains("YW5u"), "{echo}");
}

/// A head that is refused is not authenticated, even on the connection of a user. Requests in a tunnel are of its user.
#[test]
fn request_with_refused_framing_has_the_user_of_its_tunnel_only() {
    let stage = InterceptLab::new();
    let users = users_file(&stage, "ann", "secret");
    let rig = stage.start(&["--proxy-auth", &users]);
    let credentials = BASE64.encode(b"ann:secret");
    let first = format!(
        "GET http://a.test/echo HTTP/1.1\r\nHost: a.test\r\nProxy-Authorization: Basic {credentials}\r\n\r\n"
    );
    let refused = "GET http://a.test/refused HTTP/1.1\r\nHost: a.test\r\n\
         Content-Length: 1\r\nContent-Length: 1\r\n\r\n";
    let conn = rig.connect_and_send(first.as_bytes());
    recv_head(&conn);
    conn.send(refused.as_bytes());
    let line = &rig.wait_audit_lines("/refused", 1)[0];
    assert_fields(line, json!({"status": 400, "code": "bad_request"}));
    assert!(line["user"].is_null(), "{line}");
    let lengths = ["-H", "Content-Length: 1", "-H", "Content-Length: 1"];
    let in_tunnel = [
        "--proxy-user",
        "ann:secret",
        "--http1.1",
        "https://a.test/inside",
    ];
    assert_eq!(rig.curl_status(&[&lengths[..], &in_tunnel].concat()), 400);
    assert_eq!(rig.wait_audit_lines("/inside", 1)[0]["user"], "ann");
}

/// The hashes can be guessed from. A reload names the file, which has no key that has changed.
#[test]
fn users_that_others_may_read_are_warned_of() {
    let stage = InterceptLab::new();
    let users = users_file(&stage, "ann", "secret");
    fs::set_permissions(&users, Permissions::from_mode(0o644)).expect("chmod");
    let rig = stage.start(&["--proxy-auth", &users]);
    let warning = "others may read these hashes of passwords: chmod o= ";
    rig.proxy.wait_logged(warning);
    fs::set_permissions(&users, Permissions::from_mode(0o640)).expect("chmod");
    let reloaded = rig.proxy.reload("\"reloaded\"");
    assert_contains(&reloaded, &[&format!("\"files\":\"{users}\"")]);
    assert_eq!(rig.proxy.log().matches(warning).count(), 1);
}

/// Many clients send their password only when it is asked for. What follows a refused CONNECT is not parsed, so such clients
/// connect again.
#[test]
fn client_answers_the_challenge_with_its_password() {
    let stage = InterceptLab::new();
    let users = users_file(&stage, "ann", "secret");
    let rig = stage.start(&["--proxy-auth", &users]);
    let when_asked = ["--proxy-anyauth", "--proxy-user", "ann:secret"];
    let written = ["-w", "%{http_connect} %{http_code}"];
    for (url, statuses) in [
        ("https://a.test/echo?tunnel", "200 200"),
        ("http://a.test/echo?plain", "000 200"),
    ] {
        let printed = rig.curl(&[&when_asked[..], &written, &[url]].concat());
        assert!(printed.starts_with("GET a.test "), "{url}: {printed}");
        assert!(printed.ends_with(statuses), "{url}: {printed}");
    }
    let log = rig.wait_origin_log(2);
    assert_eq!(log.len(), 2, "{log:?}");
    rig.proxy
        .wait_logged_times("\"code\":\"proxy_auth_required\"", 2);
}

/// A client on another machine has the variables of docs/ca.md, and its program a store of its own.
#[test]
fn client_on_another_machine_needs_the_documented_variables() {
    let section = Page::new(include_str!("../../../docs/ca.md"));
    let section = section.section("### Clients on other machines");
    let stage = InterceptLab::new();
    let users = users_file(&stage, "ann", "pw");
    let rig = stage.start(&["--proxy-auth", &users]);
    let ca = rig.scratch.path_text("ca.pem");
    let variables = section
        .block("certificate=")
        .replace("/usr/local/share/ca-certificates/peername.crt", &ca)
        .replace("/etc/ssl/certs/ca-certificates.crt", &ca)
        .replace("192.0.2.20:8080", &PROXY_ADDR.to_string());
    let get =
        "/usr/bin/python3 -c 'import requests; print(requests.get(\"https://a.test/echo\").text)'";
    let script = format!("{variables}\n{get}");
    assert_contains(
        &rig.lab.client.run("sh", &["-ec", &script]),
        &["GET a.test "],
    );
}

/// A client that does not trust the authority reports that in its own error. The operator finds it in the audit line,
/// which has no status, because the client got no response.
#[test]
fn client_that_rejects_the_authority_is_in_the_audit_log() {
    let rig = InterceptRig::new(&[]);
    let proxy = format!("http://{PROXY_ADDR}");
    let mut command = Command::new("curl");
    command.args([
        "-sS",
        "--noproxy",
        "",
        "--proxy",
        &proxy,
        "https://a.test/untrusted",
    ]);
    let output = rig.lab.client.output(&mut command, "");
    assert_eq!(output.status.code(), Some(60), "{output:?}");
    let line = rig
        .proxy
        .wait_json("about the handshake", |line| line["code"] == "client_tls");
    assert!(line["status"].is_null(), "{line}");
    let error = line["error"].as_str().expect("text");
    assert_contains(error, &["peername ca env"]);
}

/// Writes a file of `--proxy-auth` with one user.
fn users_file(stage: &InterceptLab, name: &str, password: &str) -> String {
    let args = ["-nbBC", "4", name, password];
    let entry = stage.lab.client.run("htpasswd", &args);
    stage.scratch.write("users", &entry)
}

const TWO_USERS: &str = include_str!("access/two_users.py");

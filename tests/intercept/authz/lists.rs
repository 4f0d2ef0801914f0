//! Access lists (`--allow`, `--deny`): which rule decides, and that no spelling of a request goes around one.

use std::time::Duration;

use serde_json::{Value, json};

use super::decisions::{CHECK_OPTION, CHECK_SERVICE, start_check};
use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Process, assert_contains, assert_fields, stderr_text};
use crate::harness::peername::{Peername, words};
use crate::harness::rig::intercept::{
    InterceptLab, InterceptRig, LONG_CHECK_TIMEOUT, PROXY_ADDR, recv_head,
};

#[test]
fn first_matching_rule_decides_on_each_request() {
    let rig = InterceptRig::new(&words(
        "--deny=a.test/private --allow=a.test --deny=*.test:80 --allow=b.test",
    ));
    for version in ["--http1.1", "--http2"] {
        let answer = rig.curl(&[version, "https://a.test/echo"]);
        assert!(answer.starts_with("GET a.test "), "{answer}");
        let problem = rig.curl_problem(&[version, "https://a.test/private/1"]);
        let detail = "denied by the rule deny a.test/private";
        let expected = json!({"code": "denied", "status": 403, "detail": detail});
        assert_fields(&problem, expected);
    }
    assert_eq!(rig.curl_status(&["http://a.test/echo"]), 200);
    assert_eq!(rig.curl_status(&["https://b.test/echo"]), 200);
    assert_eq!(rig.curl_status(&["http://b.test/echo"]), 403);
    let page = rig.curl(&[
        "-A",
        "Mozilla/5.0",
        "-H",
        "Accept: text/html",
        "https://h1.test/",
    ]);
    let requested = "<code>h1.test:443/</code>";
    assert_contains(
        &page,
        &[
            "<p>No rule allows it.</p>",
            requested,
            "<code>--allow h1.test</code>",
        ],
    );
    assert!(!page.contains("<p></p>"), "{page}");
    let refused = rig.try_curl(&["https://h1.test/echo"]);
    assert_contains(&stderr_text(&refused), &["tunnel failed, response 403"]);
    assert!(rig.origin_log().iter().all(|line| line.contains("/echo")));

    let line = &rig.wait_audit_lines("/private/1", 2)[0];
    let expected = json!({"rule": "deny a.test/private", "decision": "denied", "how": "list"});
    assert_fields(line, expected);
    let line = &rig.wait_audit_lines("/echo", 5)[0];
    let expected = json!({"rule": "allow a.test", "decision": "allowed", "how": "list"});
    assert_fields(line, expected);
    let line = &rig.wait_audit_lines("", 1)[0];
    assert_eq!(line["reason"], "no rule allows it", "{line}");
}

/// nginx itself shows that most of these spellings lead to the denied file.
#[test]
fn no_spelling_of_a_path_goes_around_a_rule() {
    for (rules, is_served) in [
        (&["--allow=*"][..], true),
        (&["--deny=a.test/private", "--allow=a.test"], false),
        (&["--allow=a.test/public", "--allow=a.test/x"], false),
    ] {
        let rig = InterceptRig::new(rules);
        for directory in ["private", "public", "x"] {
            std::fs::create_dir(rig.scratch.path(directory)).expect("create a directory");
        }
        rig.scratch.write("private/file", "treasure\n");
        rig.scratch.write("public/file", "public\n");
        let mut served = 0;
        for spelling in SPELLINGS {
            for base in [
                "http://a.test",
                "https://a.test",
                "http://A.TEST",
                "http://a.test.",
            ] {
                let url = format!("{base}{spelling}");
                let answer = rig.curl(&["--path-as-is", "--http1.1", &url]);
                served += usize::from(answer == "treasure\n");
                assert!(is_served || answer != "treasure\n", "{rules:?}: {url}");
            }
            let url = format!("https://a.test{spelling}");
            let answer = rig.curl(&["--path-as-is", "--http2", &url]);
            assert!(is_served || answer != "treasure\n", "{rules:?}: {url}");
        }
        // Without a rule most spellings lead to the file, or this test would show nothing.
        assert!(!is_served || served >= 40, "{served}");
        let allowed = if is_served {
            "/private/file"
        } else {
            "/public/file"
        };
        assert_eq!(rig.curl_status(&[&format!("https://a.test{allowed}")]), 200);
    }
}

/// nginx takes none of these for the path, but servers on other systems do.
#[test]
fn path_that_some_servers_take_for_a_denied_one_is_denied() {
    let rig = InterceptRig::new(&["--deny=a.test/private", "--allow=a.test"]);
    let ask = |path: &str| rig.curl_status(&["--path-as-is", &format!("https://a.test{path}")]);
    for path in [
        "/x/%EF%B8%B0/private/file",
        "/%E2%93%9Frivate/file",
        "/pr%C4%B1vate/file",
        "/private%E2%80%8B/file",
        "/private::$DATA",
        "/private%3A%24I30%3A%24INDEX_ALLOCATION/file",
    ] {
        assert_eq!(ask(path), 403, "{path}");
    }
    for path in ["/stra%C3%9Fe/file", "/v1/private:get", "/%E3%81%82"] {
        assert_eq!(ask(path), 404, "{path}");
    }
}

/// The requests inside are not visible, so a rule with a path can't allow the tunnel.
#[test]
fn relayed_tunnel_needs_a_rule_without_a_path() {
    for (rules, status) in [
        (&["--allow=a.test/public"][..], 403),
        (&["--deny=a.test/private", "--allow=a.test"], 403),
        (&["--allow=b.test/public", "--allow=a.test:443"], 200),
    ] {
        let rig = InterceptRig::new(&[&["--passthrough=a.test"], rules].concat());
        let request = b"CONNECT a.test:443 HTTP/1.1\r\n\r\n";
        let conn = rig.connect_and_send(request);
        let head = recv_head(&conn);
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{rules:?}: {head}"
        );
        if status == 403 {
            // A browser gets the refusal inside the tunnel.
            let browser = ["-A", "Mozilla/5.0", "-o", "/dev/null", "-w", "%{http_code}"];
            let inside = rig.curl(&[&browser[..], &["https://a.test/public"]].concat());
            assert_eq!(inside, "403", "{rules:?}");
        } else {
            let root = rig.scratch.path_text("root.pem");
            assert_eq!(rig.curl(&["--cacert", &root, "https://a.test/"]), "hello\n");
            let line = &rig.wait_audit_lines("", 1)[0];
            assert_eq!(line["rule"], "allow a.test:443", "{line}");
        }
    }
}

/// CONNECT names 127.0.0.1, for which the proxy would decrypt the tunnel. The ClientHello names `localhost`, which is passed
/// through.
#[test]
fn tunnel_that_is_relayed_by_its_server_name_needs_a_rule_without_a_path() {
    let rig = InterceptRig::new(&["--passthrough=localhost", "--allow=127.0.0.1:8443/public"]);
    let origin = Backend::listen(&rig.lab.balancer, v4([127, 0, 0, 1], 8443));
    let url = "https://localhost:8443/";
    let other_name = ["--connect-to", "localhost:8443:127.0.0.1:8443", url];
    assert!(!rig.try_curl(&other_name).status.success());
    let line = &rig.wait_audit_lines("", 1)[0];
    assert_eq!(line["decision"], "denied", "{line}");
    assert!(origin.accept_within(Duration::from_millis(1)).is_none());
}

/// A rule with a path needs requests to decide on, which only HTTP has, in TLS or not.
#[test]
fn tunnel_of_another_protocol_is_refused() {
    let rig = InterceptRig::new(&["--allow=a.test/public"]);
    let request = b"CONNECT a.test:80 HTTP/1.1\r\n\r\n";
    let conn = rig.connect_and_send(request);
    assert!(recv_head(&conn).starts_with("HTTP/1.1 200 "));
    conn.send(b"SSH-2.0-test\r\n");
    conn.wait_closed();
    let line = &rig.wait_audit_lines("", 1)[0];
    assert_eq!(line["code"], "unknown_protocol", "{line}");
    assert_eq!(rig.origin_log(), Vec::<String>::new());
}

/// The service is asked about what the lists allow, and denies some of it.
#[test]
fn lists_and_check_have_to_agree() {
    let stage = InterceptLab::new();
    let check = start_check(&stage.lab, &stage.scratch, CHECK_SERVICE);
    let rig = stage.start(&[
        CHECK_OPTION,
        LONG_CHECK_TIMEOUT,
        "--allow=a.test",
        "--allow=b.test",
    ]);
    assert_eq!(rig.curl_status(&["https://a.test/echo"]), 200);
    assert_eq!(rig.curl_status(&["https://a.test/secret"]), 403);
    assert_eq!(rig.curl_status(&["http://b.test/echo"]), 403);
    assert_eq!(rig.curl_status(&["http://h1.test/echo"]), 403);
    let allowed = &rig.wait_audit_lines("/echo", 3)[0];
    assert_fields(allowed, json!({"rule": "allow a.test", "how": "asked"}));
    let denied = &rig.wait_audit_lines("/secret", 1)[0];
    assert_fields(denied, json!({"rule": "allow a.test", "how": "asked"}));
    check.wait_logged("http b.test /echo");
    assert!(!check.log().contains("h1.test"), "{}", check.log());
}

/// The new list decides on the next request of a connection that was open before the reload.
#[test]
fn reload_puts_other_rules_in_force_for_open_connections() {
    let stage = InterceptLab::new();
    let dir = stage.scratch.path_text(".");
    let file = |rules: &str| {
        format!(
            "[intercept]\nlisten = [\"{PROXY_ADDR}\"]\nca = \"{dir}/ca\"\nextra-ca = [\"{dir}/root.pem\"]\n\
             allow-client = [\"any\"]\nallow-destination = [\"10.81.0.0/24\"]\nrules = [{rules}]\n"
        )
    };
    let before = file("\"deny a.test/x\", \"allow a.test\"");
    let config = stage.scratch.write("intercept.toml", &before);
    let rig = stage.start_with_file(&config, "-v");
    let get = |conn: &Conn, path: &str| {
        conn.send(format!("GET http://a.test{path} HTTP/1.1\r\nHost: a.test\r\n\r\n").as_bytes());
        let answer =
            conn.recv_text_until(|text| text.ends_with("hello\n") || text.ends_with("}\n"));
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let client = Conn::connect(&rig.lab.client, PROXY_ADDR);
    assert_eq!(
        (get(&client, "/x"), get(&client, "/")),
        ("403".into(), "200".into())
    );
    rig.scratch
        .write("intercept.toml", &file("\"deny a.test\", \"allow *\""));
    rig.proxy.reload("\"reloaded\"");
    assert_eq!(get(&client, "/"), "403");
    rig.scratch.write("intercept.toml", &file("\"deny *\""));
    rig.proxy.reload("denies every request");
    assert_eq!(get(&client, "/"), "403");
}

/// A list that can't be used any more leaves the one before in force.
#[test]
fn reload_reads_the_list_of_a_file_again() {
    let stage = InterceptLab::new();
    let list = stage.scratch.write("list", "# hosts\na.test\n");
    let rig = stage.start(&["-v", &format!("--allow=@{list}")]);
    let status = |host: &str| rig.curl_status(&[&format!("http://{host}/echo")]);
    assert_eq!((status("a.test"), status("b.test")), (200, 403));
    rig.scratch.write("list", "b.test\n");
    rig.proxy.reload("\"reloaded\"");
    assert_eq!((status("a.test"), status("b.test")), (403, 200));
    rig.scratch.write("list", "# none\n");
    rig.proxy.reload("the file lists no rule");
    assert_eq!((status("a.test"), status("b.test")), (403, 200));
}

#[test]
fn rules_that_can_not_mean_what_they_say_are_refused() {
    let stage = InterceptLab::new();
    for (args, expected) in [
        (&["--deny=a.test"][..], "--allow '*' for everything else"),
        (
            &["--allow=a.test/x/../y"],
            "servers disagree about what this path means",
        ),
        (&["--allow=a.test:http"], "a port is a number"),
        (&["--allow=a b"], "not an HTTP method"),
        (
            &["--allow=a.test", "--auto-passthrough"],
            "cannot be used with",
        ),
    ] {
        let ca = stage.scratch.path_text("ca");
        let all = [&["intercept", "--ca", &ca], args].concat();
        assert_contains(
            &Peername::run_failing(&stage.lab.balancer, &all, 2),
            &[expected],
        );
    }
}

/// Spellings of /private/file. nginx takes most of them for that file.
const SPELLINGS: [&str; 24] = [
    "/private/file",
    "/public/../private/file",
    "/public/%2e%2e/private/file",
    "/public/.%2E/private/file",
    "/public/%2e./private/file",
    "/public/..%2fprivate/file",
    "/public%2f..%2fprivate%2ffile",
    "/./private/file",
    "/%2e/private/file",
    "//private/file",
    "/public//../private/file",
    "/x//..//private/file",
    "///private//file",
    "/private//file",
    "/private/./file",
    "/private/x/../file",
    "/%70rivate/file",
    "/p%72ivate/file",
    "/%70%72%69%76%61%74%65/file",
    "/private%2ffile",
    "/private/file?x=/public/",
    "/public/../../private/file",
    "/x/..;/private/file",
    "/public\\..\\private/file",
];

/// A rule for a port relays any protocol. A refusal says which rule would allow the request, and where to ask for it.
#[test]
fn rules_name_methods_and_ports_and_refusals_name_the_rule() {
    let rig = InterceptRig::new(&[
        "--allow=GET a.test/echo",
        "--allow=a.test:7022",
        "--allow=b.test",
        "--contact=Ask <net@example.com>, it's quick",
    ]);
    let args = ["TCP-LISTEN:7022,bind=10.81.0.1,fork,reuseaddr", "EXEC:cat"];
    let server = Process::start(&rig.lab.server, "socat", &args);
    let _server = server.wait_listening(&[v4([10, 81, 0, 1], 7022)]);
    for (host, is_relayed) in [("a.test", true), ("b.test", false)] {
        let connect = format!("CONNECT {host}:7022 HTTP/1.1\r\nHost: {host}:7022\r\n\r\n");
        let conn = rig.connect_and_send(connect.as_bytes());
        assert!(recv_head(&conn).contains(" 200 "), "{host}");
        conn.send(b"\x01binary\n");
        if is_relayed {
            assert_eq!(conn.recv(8), b"\x01binary\n");
        } else {
            assert!(conn.recv_to_end().0.is_empty());
        }
    }
    let lines = rig.wait_audit_lines("", 2);
    let is_refused = |line: &Value| line["code"] == "unknown_protocol" && line["host"] == "b.test";
    assert!(lines.iter().any(is_refused), "{lines:?}");
    for version in ["--http1.1", "--http2"] {
        assert_eq!(rig.curl_status(&[version, "https://a.test/echo"]), 200);
        let problem = rig.curl_problem(&[version, "-d", "x", "https://a.test/echo"]);
        let expected = json!({
            "type": "about:blank",
            "title": "Forbidden",
            "status": 403,
            "code": "denied",
            "detail": "no rule allows it",
            "host": "a.test",
            "port": 443,
            "path": "/echo",
            "allow_by": "--allow 'POST a.test/echo'",
            "contact": "Ask <net@example.com>, it's quick",
            "request_id": problem["request_id"],
        });
        assert_eq!(problem, expected);
    }
    let problem = rig.curl(&["-d", "x", "https://a.test/echo"]);
    assert!(problem.ends_with("}\n"), "{problem:?}");
    let page = rig.curl(&["-d", "x", "-H", "Accept: text/html", "https://a.test/echo"]);
    assert_contains(&page, &["<p>Ask &lt;net@example.com&gt;, it's quick</p>"]);
}

/// Of an answer to CONNECT most clients show the status line at most, and of one to a request, many.
#[test]
fn status_line_of_a_denial_has_code_and_contact() {
    let rig = InterceptRig::new(&["--allow=a.test", "--contact=Frag J\u{f6}rg\n"]);
    let conn = rig.connect_and_send(b"CONNECT b.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n");
    let head = recv_head(&conn);
    assert!(
        head.starts_with("HTTP/1.1 403 Forbidden (denied): Frag J?rg?\r\n"),
        "{head}"
    );
    assert_contains(&head, &["x-peername-contact: Frag J?rg?\r\n"]);
    // A CONNECT has no scheme, whatever its port.
    let expected = json!({"method": "CONNECT", "host": "b.test", "port": 443, "scheme": null});
    assert_fields(&rig.wait_audit_lines("", 1)[0], expected);
    let conn = rig.connect_and_send(b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n");
    assert!(recv_head(&conn).starts_with("HTTP/1.1 200 OK\r\n"));
    let conn = rig.connect_and_send(b"GET http://b.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n");
    let head = recv_head(&conn);
    let status_line = "HTTP/1.1 403 Forbidden (denied): Frag J?rg?\r\n";
    assert!(head.starts_with(status_line), "{head}");
}

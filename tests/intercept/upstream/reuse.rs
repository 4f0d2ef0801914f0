//! Reuse of connections to origins: which client owns each, and when another client gets it.

use std::collections::HashSet;
use std::path::Path;
use std::thread;

use serde_json::json;

use crate::harness::addr::v4;
use crate::harness::admin::ADMIN;
use crate::harness::backend::Backend;
use crate::harness::lab::{Process, assert_fields, wait_until};
use crate::harness::peername::{IS_STATIC, words};
use crate::harness::rig::intercept::{InterceptLab, InterceptRig, PROXY_ADDR, recv_head};
use crate::intercept::listener::kinds::start_transparent;

/// nginx allows two streams per connection, and one client has both.
#[test]
fn streams_of_one_client_do_not_block_another() {
    let rig = InterceptRig::new(&["--workers=1", "--allow-destination=10.81.0.1:8443"]);
    let _holds = hold_streams(&rig, &["/slow", "/slow"]);
    let answer = rig.curl(&["--max-time", "5", "https://a.test:8443/echo"]);
    assert!(
        answer.starts_with("GET a.test:8443 HTTP/2.0"),
        "by HTTP/2: {answer}"
    );
}

/// The origin allows 100 streams per connection, and has answered them. Their uploads have not ended, so each still counts.
#[test]
fn connection_of_open_uploads_serves_no_other_client() {
    let rig = InterceptRig::new(&["--workers=1", "--allow-destination=10.81.0.1:9001"]);
    let _origin = rig.start_python_origin(include_str!("early_http2.py"));
    let held = rig.scratch.path_text("held");
    let steps = [&["post", "/upload"].repeat(100)[..], &["wait", &held]].concat();
    let _uploads = start_streams(&rig, "a.test:9001", &steps);
    wait_until("answers", || Path::new(&held).exists());
    let answer = rig.curl_status(&["--max-time", "5", "https://a.test:9001/other"]);
    assert_eq!(answer, 200);
    let line = &rig.wait_audit_lines("/other", 1)[0];
    assert_fields(line, json!({"reused": false}));
}

/// The client is gone while its upload waits for the origin's window, so that the stream can't be reset. The connection is
/// closed, as the origin would go on waiting.
#[test]
fn connection_of_an_upload_that_is_stuck_is_closed() {
    let options = ["--workers=1", "--allow-destination=10.81.0.1:9001", ADMIN];
    let rig = InterceptRig::new(&options);
    // Its response to a request with a body does not end.
    let origin = include_str!("early_http2.py").replace("HEADERS, END,", "HEADERS, 4 | flags & 1,");
    let origin = rig.start_python_origin(&origin);
    let proxy = format!("http://{PROXY_ADDR}");
    let [ca, file] = ["ca.pem", "large"].map(|name| rig.scratch.path_text(name));
    let upload = ["--upload-file", &file, "https://a.test:9001/upload"];
    let args = [&["-sS", "--proxy", &proxy, "--cacert", &ca], &upload[..]].concat();
    let client = Process::start(&rig.lab.client, "curl", &args);
    origin.wait_printed("full");
    drop(client);
    wait_until("the end of the connection", || {
        let metrics = rig.read_metrics();
        ["idle", "in_use"].iter().all(|state| {
            let sample = format!("upstream_connections{{state=\"{state}\"}} 0\n");
            metrics.contains(&sample)
        })
    });
    assert_eq!(rig.curl_status(&["https://a.test:9001/other"]), 200);
    let line = &rig.wait_audit_lines("/other", 1)[0];
    assert_fields(line, json!({"reused": false}));
}

/// The origin answers without the last byte of a body, for which it opens no window. The stream stays half open, so its
/// connection serves no other request.
#[test]
fn connection_that_holds_back_a_body_is_not_reused() {
    let rig = InterceptRig::new(&[
        "--workers=1",
        "--allow-destination=10.81.0.1:9001",
        "--idle-timeout=1s",
    ]);
    let origin = include_str!("early_http2.py").replace(
        "if kind == HEADERS:",
        "if kind == DATA and window == 0 or kind == HEADERS and flags & 1:",
    );
    let _origin = rig.start_python_origin(&origin);
    let body = format!("@{}", rig.scratch.write("held-back", &"x".repeat(65536)));
    let upload = "https://a.test:9001/upload";
    let answer = rig.curl_status(&["-H", "Expect:", "--data-binary", &body, upload]);
    assert_eq!(answer, 200);
    let line = &rig.wait_audit_lines("/upload", 1)[0];
    assert_fields(line, json!({"end": "idle"}));
    assert_eq!(rig.curl_status(&["https://a.test:9001/other"]), 200);
    let line = &rig.wait_audit_lines("/other", 1)[0];
    assert_fields(line, json!({"reused": false}));
}

/// The origin allows two streams per connection, the proxy's client more.
#[test]
fn streams_beyond_the_origins_limit_open_another_connection() {
    let rig = InterceptRig::new(&["--workers=1", "--allow-destination=10.81.0.1:8443"]);
    // The origin's limit is known once it has answered.
    let printed = open_streams(
        &rig,
        &["/echo", "/slow", "/slow", "/echo?3", "/slow", "/echo?5"],
    );
    assert_eq!(printed, "200 200 200 200 200 200");
    let log = rig.wait_origin_log(3);
    let connection_of = |word: &str| {
        let line = log.iter().find(|line| line.contains(word));
        line.and_then(|line| line.rsplit(' ').next())
            .expect("a connection")
    };
    let connections = HashSet::from(["/echo ", "/echo?3", "/echo?5"].map(connection_of));
    assert_eq!(connections.len(), 2, "{log:?}");
}

/// Two clients one after the other: the second reuses the first one's connection from the idle pool.
#[test]
fn idle_connection_serves_another_client() {
    let rig = InterceptRig::new(&["--workers=1"]);
    for version in ["--http1.1", "--http2"] {
        for _ in 0..3 {
            rig.curl(&[version, "https://a.test/"]);
        }
    }
    let log = rig.wait_origin_log(6);
    assert_eq!(connections(&log).len(), 2, "{log:?}");
}

/// The origin answers both requests on one connection, each with a trailer.
#[test]
fn response_with_trailers_is_complete_and_frees_its_connection() {
    let rig = InterceptRig::new(&["--workers=1", "--allow-destination=10.81.0.1:9001"]);
    let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
    let request = b"GET http://a.test:9001/sum HTTP/1.1\r\nHost: a.test:9001\r\n\r\n";
    let client = rig.connect_and_send(request);
    let up = origin.accept();
    let respond = || {
        recv_head(&up);
        up.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        up.send(b"5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n");
        client.recv_text_until(|text| text.ends_with("\r\n0\r\n\r\n"));
    };
    respond();
    client.send(request);
    respond();
    let lines = rig.wait_audit_lines("/sum", 2);
    for (line, reused) in lines.iter().zip([false, true]) {
        assert_fields(line, json!({"end": "complete", "reused": reused}));
    }
}

/// Forty concurrent requests share one handshake per connection of their client.
#[test]
fn concurrent_streams_share_a_connection() {
    let rig = InterceptRig::new(&["--workers=1"]);
    let urls: Vec<_> = (0..40)
        .map(|at| format!("https://a.test/echo?{at}"))
        .collect();
    let urls = urls.iter().map(String::as_str);
    let args = ["--parallel", "--parallel-max", "40"];
    rig.curl(&args.into_iter().chain(urls).collect::<Vec<_>>());
    let log = rig.wait_origin_log(40);
    let clients: HashSet<_> = rig
        .wait_audit_lines("/echo", 40)
        .iter()
        .filter_map(|line| Some(line["connection"].as_str()?.to_owned()))
        .collect();
    assert_eq!(connections(&log).len(), clients.len(), "{clients:?}");
}

/// NTLM authenticates a connection by two requests on it, Negotiate by one.
#[test]
fn authenticated_connection_serves_no_other_client() {
    let rig = InterceptRig::new(&["--workers=1", "--allow-destination=10.81.0.1:9001"]);
    let _server = rig.start_python_origin(include_str!("connection_auth_origin.py"));
    for scheme in [
        &["--ntlm", "--user", "alice:secret"][..],
        &["-H", "Authorization: Negotiate alice"],
    ] {
        let urls = [AUTH_ORIGIN; 2];
        let printed = rig.curl(&[scheme, &urls[..]].concat());
        assert_eq!(printed.lines().last(), Some("alice"), "{scheme:?}");
        for _ in 0..2 {
            assert_eq!(rig.curl_status(&[AUTH_ORIGIN]), 401, "after {scheme:?}");
        }
    }
}

/// The second step of NTLM must use the connection of the first, whatever other requests come in between.
#[test]
fn concurrent_ntlm_handshakes_stay_on_their_connections() {
    let rig = InterceptRig::new(&["--workers=1", "--allow-destination=10.81.0.1:9001"]);
    let _server = rig.start_python_origin(include_str!("connection_auth_origin.py"));
    let users: Vec<_> = (0..16).map(|at| format!("user{at}")).collect();
    thread::scope(|scope| {
        for user in &users {
            let rig = &rig;
            scope.spawn(move || {
                let login = format!("{user}:secret");
                let args = ["--ntlm", "--user", &login];
                let printed = rig.curl(&[&args[..], &[AUTH_ORIGIN; 4]].concat());
                assert_eq!(printed, format!("{user}\n").repeat(4));
            });
        }
    });
}

/// An origin that speaks HTTP/1.1 only is offered HTTP/2 again after a while, because it may have been upgraded. The client's
/// version shows what the proxy remembers: it offers the client HTTP/2 unless it knows that the origin has none. The proxy's
/// clock is put forward.
#[test]
fn remembered_protocol_of_an_origin_expires() {
    if IS_STATIC {
        // The clock is put forward by a preloaded library.
        return;
    }
    let stage = InterceptLab::new();
    let clock = stage.scratch.write("clock", "+0");
    let file = format!("FAKETIME_TIMESTAMP_FILE={clock}");
    let through = ["env", &file, FAKETIME, "FAKETIME_NO_CACHE=1"];
    let rig = stage.start_through(&through, &["--workers=1"]);
    let client_version = || rig.curl(&words("-o /dev/null -w %{http_version} https://h1.test/"));
    let first = [client_version(), client_version()];
    assert_eq!(first, ["2", "1.1"], "it is remembered");
    rig.scratch.write("clock", "+11m");
    let later = [client_version(), client_version()];
    assert_eq!(later, ["2", "1.1"], "and asked again");
}

/// A redirected client has chosen the address, and another address is another server, to which HTTP/2 is offered again.
#[test]
fn remembered_protocol_is_kept_by_address() {
    let rig = start_transparent("--transparent=203.0.113.1:8081", "redirect to :8081");
    let client_version = |address: &str| {
        let to = format!("h1.test:443:{address}:443");
        let args = ["-o", "/dev/null", "-w", "%{http_version}", "--connect-to"];
        rig.curl_without_proxy(&[&args[..], &[&to, "https://h1.test/echo"]].concat())
    };
    let versions = ["10.81.0.3", "10.81.0.3", "10.81.0.1"].map(client_version);
    assert_eq!(versions, ["2", "1.1", "2"]);
}

/// The connections of these lines of the origin's log.
fn connections(log: &[String]) -> HashSet<&str> {
    log.iter()
        .filter_map(|line| line.rsplit(' ').next())
        .collect()
}

/// Opens these streams on one HTTP/2 connection of a client to [`LIMITED`]; returns their statuses.
#[track_caller]
fn open_streams(rig: &InterceptRig, paths: &[&str]) -> String {
    rig.run_python_client(STREAMS, &[&[LIMITED], paths].concat())
}

/// Opens streams like [`open_streams`], and leaves them open without reading from them.
fn hold_streams(rig: &InterceptRig, paths: &[&str]) -> Process {
    let held = rig.scratch.path_text("held");
    let process = start_streams(rig, LIMITED, &[paths, &["wait", &held]].concat());
    wait_until("answers", || Path::new(&held).exists());
    process
}

/// Starts a client that takes these steps on one HTTP/2 connection; see `streams_client.py`.
pub(crate) fn start_streams(rig: &InterceptRig, authority: &str, steps: &[&str]) -> Process {
    let script = rig.scratch.write("streams.py", STREAMS);
    let (proxy, ca) = (PROXY_ADDR.to_string(), rig.scratch.path_text("ca.pem"));
    let args = [&[&*script, &proxy, &ca, authority], steps].concat();
    Process::start(&rig.lab.client, "/usr/bin/python3", &args)
}

const STREAMS: &str = include_str!("streams_client.py");
/// The port of the origin that allows two streams per connection.
const LIMITED: &str = "a.test:8443";
const AUTH_ORIGIN: &str = "http://a.test:9001/";
/// ld.so(8) expands `$LIB`.
const FAKETIME: &str = "LD_PRELOAD=/usr/$LIB/faketime/libfaketime.so.1";

//! The admin endpoint (`--admin`), and readiness while the check service can't be reached.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::addr::v4;
use crate::harness::admin::{ADMIN, get, list, wait_answer, wait_listed, wait_metric};
use crate::harness::check::service::Service;
use crate::harness::conn::Conn;
use crate::harness::lab::{
    Process, Scratch, assert_contains, assert_fields, stdout_text, wait_for, wait_until,
};
use crate::harness::peername::{Peername, words};
use crate::harness::programs::browser::wait_page_shows;
use crate::harness::programs::terminal::run_in_terminal;
use crate::harness::rig::intercept::{
    CLIENT_IP, InterceptLab, InterceptRig, LONG_CHECK_TIMEOUT, PROXY_ADDR, recv_head,
};

impl InterceptRig {
    /// Starts a curl that requests through the proxy and prints the body as it comes.
    fn start_curl(&self, args: &[&str]) -> Process {
        let (proxy, ca) = (
            format!("http://{PROXY_ADDR}"),
            self.scratch.path_text("ca.pem"),
        );
        let root = self.scratch.path_text("root.pem");
        // A passthrough tunnel shows the origin's certificate, any other the proxy's.
        let is_relayed = args.iter().any(|arg| arg.contains("//b.test"));
        let ca = if is_relayed { &root } else { &ca };
        let common = [
            "-sSN",
            "--noproxy",
            "",
            "--proxy",
            &proxy,
            "--cacert",
            ca,
            "--suppress-connect-headers",
        ];
        let args = [&common, args].concat();
        Process::start(&self.lab.client, "/usr/bin/curl", &args)
    }

    /// The proxy's connections to origins, as the kernel knows them.
    fn count_origin_connections(&self) -> usize {
        let args = words("-Htn state established dst 10.81.0.0/24");
        self.lab.balancer.run("ss", &args).lines().count()
    }
}

/// The host, the state and the client's address of a listed connection.
fn host_state_client(conn: &Value) -> (&str, &str, &str) {
    let text = |name: &str| conn[name].as_str().unwrap_or_default();
    let (ip, _) = text("client").rsplit_once(':').unwrap_or_default();
    (text("host"), text("state"), ip)
}

/// An origin without TLS, whose response is endless and has no length.
const ENDLESS_SERVER: &str = include_str!("admin/endless_server.py");

/// A check service that can't be reached is logged at the start, before any request, and `/readyz` is 503 until it
/// can be reached.
#[test]
fn readyz_waits_for_the_check_service() {
    let check = v4([127, 0, 0, 1], 9191);
    let url = format!("--check=grpc://{check}");
    let rig = InterceptRig::new(&[&url, ADMIN, LONG_CHECK_TIMEOUT]);
    let host = &rig.lab.balancer;
    rig.proxy.wait_logged("can't be asked: ");
    rig.proxy.wait_logged("requests are denied until it can");
    let ready = get(host, &[], "/readyz");
    assert!(
        ready.contains("the check service can't be asked") && ready.ends_with("503"),
        "{ready}"
    );
    wait_metric(host, &[], "peername_ready 0");
    assert_eq!(get(host, &[], "/healthz"), "ok\n200");
    let _service = host.enter(|| Service::ext_authz(check));
    rig.proxy.wait_logged("can be asked now");
    wait_answer(host, "/readyz", "ready\n200");
    wait_metric(host, &[], "peername_ready 1");
}

/// A balancer must not take out a proxy that serves.
#[test]
fn readyz_is_ready_without_the_check_service_where_requests_go_on() {
    let url = "--check=grpc://127.0.0.1:9191";
    let rig = InterceptRig::new(&[url, ADMIN, "--on-check-failure=allow"]);
    let ready = get(&rig.lab.balancer, &[], "/readyz");
    assert!(
        ready.starts_with("ready; but the check service can't be asked") && ready.ends_with("200"),
        "{ready}"
    );
    wait_metric(&rig.lab.balancer, &[], "peername_ready 1");
}

#[test]
fn chromium_shows_decisions_and_certificates() {
    let rig = InterceptRig::new(&[ADMIN]);
    assert_eq!(rig.curl_status(&["https://a.test/passes"]), 404);
    assert_eq!(rig.curl_status(&["http://private.test/refused"]), 403);
    let shown = [
        "peername intercept",
        "ready",
        "unchecked\t",
        "refused\t1",
        "Certificates issued\n1\n",
        // The reason, and the remedy.
        "destination_not_public\trequests\t1\t",
        "If clients may go there, name the host in a rule of --allow, or add the network to --allow-destination.",
        // The connection to the origin of the request that passed.
        "idle\t1",
        "new\t1",
    ];
    wait_page_shows(&rig.lab.balancer, &shown);
    let top = Peername::run(&rig.lab.balancer, &["top", ADMIN]);
    assert_contains(&stdout_text(&top), &["decisions: refused 1, unchecked 1\n"]);
}

#[test]
fn top_shows_decisions_checks_and_their_time() {
    let check = v4([127, 0, 0, 1], 9191);
    let url = format!("--check=grpc://{check}");
    let lab = InterceptLab::new();
    let mut service = lab.lab.balancer.enter(|| Service::ext_authz(check));
    service.set_answer(r#"{"status": {}, "okResponse": {}}"#);
    let rig = lab.start(&[&url, ADMIN, LONG_CHECK_TIMEOUT]);
    assert_eq!(rig.curl_status(&["https://a.test/passes"]), 404);
    let steps = [
        "see:decisions: allowed 1",
        "see:checks: ok ",
        "see:time of a check: mean ",
        "see:, p99 ",
        "press:q",
    ];
    run_in_terminal(&rig.lab.balancer, &steps, &["top", ADMIN]);
}

/// The connections to origins are compared with those that the kernel has.
#[test]
fn open_connections_are_listed_with_client_host_and_state() {
    let rig = InterceptRig::new(&[ADMIN, "--workers=2", "--passthrough=b.test"]);
    let host = &rig.lab.balancer;
    rig.lab.client.add_addresses("eth0", &["203.0.113.10/24"]);
    let other_ip = ["--interface", "203.0.113.10"];
    let requests = [
        rig.start_curl(&["--http1.1", "https://h1.test/slow"]),
        rig.start_curl(&[&other_ip[..], &["--http2", "https://a.test/slow"]].concat()),
        rig.start_curl(&["--http1.1", "https://b.test/slow"]),
    ];
    let connect = |request: &str| {
        let conn = rig.connect_and_send(request.as_bytes());
        let head = recv_head(&conn);
        assert!(head.starts_with("HTTP/1.1 20"), "{head}");
        conn
    };
    let handshake = connect("CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n");
    let idle = connect("GET http://a.test/none HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let wanted = [
        ("a.test:443", "in_flight", "203.0.113.10"),
        ("a.test:80", "idle", CLIENT_IP),
        ("b.test:443", "open", CLIENT_IP),
        ("h1.test:443", "in_flight", CLIENT_IP),
        ("other.test:443", "handshake", CLIENT_IP),
    ];
    wait_until("all connections, in their states", || {
        let listed = list(host, &[], "/connections");
        let mut states: Vec<_> = listed.iter().map(host_state_client).collect();
        states.sort_unstable();
        states == wanted
    });
    let list_hosts = |query: &str| {
        let listed = list(host, &[], &format!("/connections?{query}"));
        let mut hosts: Vec<_> = listed
            .iter()
            .map(|conn| host_state_client(conn).0.to_owned())
            .collect();
        hosts.sort_unstable();
        hosts
    };
    assert_eq!(list_hosts("client=203.0.113.10"), ["a.test:443"]);
    assert_eq!(list_hosts("state=in_flight"), ["a.test:443", "h1.test:443"]);
    assert_eq!(list_hosts("state=handshake"), ["other.test:443"]);
    assert_eq!(list_hosts("sort=bytes&limit=1"), ["b.test:443"]);
    assert_eq!(list_hosts(&format!("listener={PROXY_ADDR}")).len(), 5);
    assert!(list_hosts("listener=192.0.2.1:1").is_empty());
    assert!(get(host, &[], "/connections?state=served").ends_with("400"));

    // Bytes are counted only for a tunnel that is relayed without being decrypted.
    let [relayed] = &list(host, &[], "/connections?state=open")[..] else {
        panic!("no tunnel")
    };
    assert!(relayed["bytes_out"].as_u64() > Some(0), "{relayed}");
    assert!(relayed["relay"].is_string() && relayed["target"].is_null());
    let [waiting] = &list(host, &[], "/connections?state=idle")[..] else {
        panic!("no idle connection")
    };
    assert_eq!(waiting["balancer"], idle.local_addr().to_string());
    assert_eq!(waiting["client"], idle.local_addr().to_string());
    assert!(waiting["bytes_in"].is_null() && waiting["bytes_out"].is_null());
    assert!(waiting["idle_s"].as_f64() <= waiting["age_s"].as_f64());

    // The endpoint has no password, so nothing can be changed over TCP.
    let id = format!("/connections/{}", waiting["id"]);
    let answer = get(host, &["-X", "DELETE"], &id);
    assert!(answer.ends_with("403"), "{answer}");

    // The connection that served the last request is idle; those of the three downloads are in use.
    let wait_gauge = |state: &str, count: usize| {
        let line = format!("peername_intercept_upstream_connections{{state=\"{state}\"}} {count}");
        wait_metric(host, &[], &line);
    };
    wait_gauge("idle", 1);
    wait_gauge("in_use", 3);
    assert_eq!(rig.count_origin_connections(), 4);
    drop((handshake, idle, requests));
    wait_gauge("in_use", 0);
    wait_until("the connections to origins", || {
        let idle = rig.count_origin_connections();
        let line = format!("peername_intercept_upstream_connections{{state=\"idle\"}} {idle}");
        rig.read_metrics().contains(&line)
    });
    assert_eq!(get(host, &[], "/connections"), "200");
}

/// The client must not take a truncated response for a complete one, even where the end of the connection ends the response.
#[test]
fn connection_ended_by_admin_is_reset() {
    let scratch = Scratch::new();
    let path = scratch.path_text("admin.sock");
    let admin = format!("--admin=unix:{path}");
    let rig = InterceptRig::new(&[
        &admin,
        "--allow-destination=10.81.0.1:9001",
        "--passthrough=b.test",
    ]);
    let host = &rig.lab.balancer;
    let _server = rig.start_python_origin(ENDLESS_SERVER);
    let unix = ["--unix-socket", &path];
    let delete = ["--unix-socket", &path, "-X", "DELETE"];
    let bystander = rig.start_curl(&["--http1.1", "https://h1.test/slow"]);
    wait_listed(host, &unix, "/connections", |conn| {
        conn["state"] == "in_flight"
    });
    for (version, url, state) in [
        ("--http1.0", "http://a.test:9001/", "in_flight"),
        ("--http1.1", "http://a.test:9001/", "in_flight"),
        ("--http1.1", "https://a.test/slow", "in_flight"),
        ("--http2", "https://a.test/slow", "in_flight"),
        ("--http1.1", "https://b.test/slow", "open"),
    ] {
        let body = scratch.path("body");
        let mut curl = rig.start_curl(&[version, url, "--output", &scratch.path_text("body")]);
        wait_until("a part of the body", || {
            let length = std::fs::metadata(&body).map_or(0, |body| body.len());
            length > 0
        });
        let listed = list(host, &unix, "/connections");
        let conn = listed
            .iter()
            .find(|conn| host_state_client(conn).0 != "h1.test:443")
            .expect("curl's connection");
        assert_eq!(conn["state"], state, "{conn}");
        let id = format!("/connections/{}", conn["id"]);
        assert_eq!(get(host, &delete, &id), "ended\n200");
        let status = curl.wait_exit(Duration::from_secs(10)).expect("an end");
        // curl(1)'s codes for a failure to receive, and for an error of the HTTP/2 framing layer.
        assert!(
            matches!(status.code(), Some(56 | 16)),
            "{version} {url}: {status:?}, {}",
            curl.log()
        );
        assert!(get(host, &delete, &id).ends_with("404"));
        std::fs::remove_file(&body).expect("a file");
    }
    let lines = wait_for("five audit lines", || {
        let mut ended = rig.proxy.json_lines();
        ended.retain(|line| line["end"] == "closed_by_admin");
        (ended.len() == 5).then_some(ended)
    });
    for line in lines {
        assert!(line["bytes_to_downstream"].as_u64() > Some(0), "{line}");
    }
    // A connection without a request is reset as well, and the bystander is not.
    let waiting = Conn::connect(&rig.lab.client, PROXY_ADDR);
    let listed = wait_for("the idle connection", || {
        let listed = list(host, &unix, "/connections?state=idle");
        (listed.len() == 1).then_some(listed)
    });
    let id = format!("/connections/{}", listed[0]["id"]);
    assert_eq!(get(host, &delete, &id), "ended\n200");
    waiting.wait_reset();
    let remaining = list(host, &unix, "/connections");
    assert_eq!(remaining.len(), 1);
    assert_eq!(host_state_client(&remaining[0]).0, "h1.test:443");
    drop(bystander);
}

/// `-q` shows what was refused, and nothing else.
#[test]
fn quiet_logs_show_denials() {
    let rig = InterceptRig::new(&["-q"]);
    assert_eq!(rig.curl_status(&["https://a.test/passes"]), 404);
    assert_eq!(
        rig.curl_status(&["http://private.test/is-not-let-through"]),
        403
    );
    let line = &rig.wait_audit_lines("/is-not-let-through", 1)[0];
    assert_fields(line, json!({"decision": "refused", "level": "WARN"}));
    let log = rig.proxy.log();
    assert!(
        !log.contains("/passes") && !log.contains("listening"),
        "{log}"
    );
}

#[test]
fn listener_that_is_not_given_is_shown_by_config() {
    let lab = InterceptLab::new();
    let (host, ca) = (&lab.lab.balancer, lab.scratch.path_text("ca"));
    let args = ["intercept", "--ca", &ca, ADMIN];
    let _proxy = Peername::start(host, &args, &[v4([127, 0, 0, 1], 8080)]);
    let answer = get(host, &[], "/config");
    let config = answer.strip_suffix("200").expect("200");
    let config: Value = serde_json::from_str(config).expect("JSON");
    assert_eq!(config["intercept"]["listen"], json!(["127.0.0.1:8080"]));
}

/// A web page can't read the endpoint by a name of its own that resolves to the endpoint's address (DNS rebinding).
#[test]
fn admin_endpoint_answers_to_its_own_names_only() {
    for (args, own_name) in [
        (&[ADMIN][..], "localhost"),
        (&[ADMIN, "--admin-host=proxy.example"], "proxy.example"),
    ] {
        let rig = InterceptRig::new(args);
        let get_with = |header: &str| get(&rig.lab.balancer, &["-H", header], "/healthz");
        let own_host = format!("Host: {own_name}:9300");
        for header in [
            "X: y",
            "Host:",
            "Host: localhost:9300",
            "Host: [::1]",
            "Host: 192.0.2.7:80",
            &own_host,
        ] {
            assert_eq!(get_with(header), "ok\n200", "{header}");
        }
        for header in [
            "Host: rebound.example:9300",
            "Host: 127.0.0.1.example",
            "Host: localhost.example",
            "Origin: http://rebound.example",
            "Origin: null",
            "Origin: https://127.0.0.1",
        ] {
            let answer = get_with(header);
            assert!(answer.ends_with("421"), "{header}: {answer}");
        }
    }
}

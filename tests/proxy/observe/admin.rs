//! The admin endpoint of `proxy` and `forward`: metrics that agree with what happened, health and readiness.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::addr::{LISTEN_V4, TARGET_V4, v4};
use crate::harness::admin::{ADMIN, get, list, wait_answer, wait_metric};
use crate::harness::conn::Conn;
use crate::harness::lab::{
    Host, Lab, Process, Scratch, assert_contains, stdout_text, wait_for, wait_until,
};
use crate::harness::peername::{BINARY, Peername};
use crate::harness::rig::proxy::{ProxyRig, header_for};

#[test]
fn metrics_count_what_happened_by_listener_and_outcome() {
    let rig = ProxyRig::new(&[ADMIN]);
    let host = &rig.lab.server;
    let (down, up) = rig.connect_client(v4([203, 0, 113, 7], 56324));
    down.assert_reaches(&up, b"ping");
    wait_metric(host, &[], "peername_connections_active 1");
    up.assert_reaches(&down, b"a reply");
    drop((down, up));
    // Two connections that are not served: one without a header, and one with a header that claims loopback.
    let no_header = rig.connect_and_send(b"GET / HTTP/1.1\r\n\r\n");
    no_header.wait_closed();
    let denied = rig.connect_and_send(b"PROXY TCP4 127.0.0.1 198.51.100.10 56324 443\r\n");
    denied.wait_closed();
    let refused = rig
        .proxy
        .wait_logged("connections refused: source_loopback");
    assert_contains(&refused, &["have it send LOCAL"]);

    for line in [
        "peername_connections_active 0",
        "peername_connections_accepted_total 3",
        &format!(
            "peername_connections_total{{listener=\"{LISTEN_V4}\",protocol=\"tcp\",outcome=\"finished\"}} 1"
        ),
        "peername_header_errors_total{reason=\"no_header\"} 1",
        "peername_denied_total{reason=\"source_loopback\"} 1",
        "peername_bytes_total{direction=\"to_upstream\"} 4",
        "peername_bytes_total{direction=\"to_downstream\"} 7",
        "peername_connect_seconds_bucket{le=\"+Inf\"} 1",
        "peername_connect_seconds_count 1",
    ] {
        wait_metric(host, &[], line);
    }
    assert_eq!(get(host, &[], "/healthz"), "ok\n200");
    assert_eq!(get(host, &[], "/readyz"), "ready\n200");
    let misdirected = get(host, &["-H", "Host: evil.example"], "/metrics");
    assert!(misdirected.ends_with("421"), "{misdirected}");
}

/// A balancer sends clients elsewhere during a drain, while open connections go on.
#[test]
fn draining_proxy_is_not_ready() {
    let rig = ProxyRig::new(&[ADMIN, "--drain=60s"]);
    let host = &rig.lab.server;
    let open = rig.connect_client(v4([203, 0, 113, 7], 56324));
    assert_eq!(get(host, &[], "/readyz"), "ready\n200");
    rig.proxy.signal(Signal::TERM);
    wait_answer(host, "/readyz", "draining\n503");
    wait_metric(host, &[], "peername_ready 0");
    wait_metric(host, &[], "peername_connections_active 1");
    assert_eq!(get(host, &[], "/healthz"), "ok\n200");
    drop(open);
}

/// Without the admin endpoint, `doctor` can't see whether the running proxy refuses clients, and says so.
#[test]
fn doctor_says_that_it_has_not_looked_at_refusals() {
    let rig = ProxyRig::new(&[]);
    let listener = LISTEN_V4.to_string();
    let report = |listen: &str| {
        let args = ["doctor", "--target=127.0.0.1:80", "--listen", listen];
        stdout_text(&Peername::run(&rig.lab.server, &args))
    };
    let not_seen = "warn  refusals: those of the running proxy are not looked at";
    assert_contains(&report(&listener), &[not_seen]);
    let of_a_free_port = report("127.0.0.1:9302");
    assert!(!of_a_free_port.contains(not_seen), "{of_a_free_port}");
}

/// `doctor` tells a port that peername serves from one that another program has taken.
#[test]
fn doctor_names_the_program_that_listens() {
    let rig = ProxyRig::new(&[]);
    let host = &rig.lab.server;
    let doctor_line = |listen: &str| {
        let output = Peername::run(
            host,
            &["doctor", "--target=127.0.0.1:80", "--listen", listen],
        );
        let report = stdout_text(&output);
        let line = report.lines().find(|line| line.contains(" listener: "));
        line.unwrap_or_else(|| panic!("no listener in {report}"))
            .to_owned()
    };
    let own = rig.proxy.pid();
    assert_eq!(
        doctor_line(&LISTEN_V4.to_string()),
        format!("ok    listener: TCP {LISTEN_V4} is served by peername, process {own}")
    );
    let other = Process::start(host, "socat", &["TCP-LISTEN:9301", "STDOUT"]);
    let other = other.wait_listening(&[v4([127, 0, 0, 1], 9301)]);
    assert_eq!(
        doctor_line("0.0.0.0:9301"),
        format!(
            "FAIL  listener: TCP 0.0.0.0:9301 is in use by socat, process {}; stop it, or listen on another port",
            other.pid()
        )
    );
    assert_eq!(
        doctor_line("0.0.0.0:9302"),
        "ok    listener: TCP 0.0.0.0:9302 is free"
    );
    // Another command of peername is another program.
    let forward = ["forward", "--listen=127.0.0.1:9303", "--to=127.0.0.1:9304"];
    let _forward = Peername::start(host, &forward, &[v4([127, 0, 0, 1], 9303)]);
    assert_contains(
        &doctor_line("127.0.0.1:9303"),
        &["FAIL ", "in use by peername, process"],
    );
}

/// A user that may not bind a port still sees that it is in use.
#[test]
fn doctor_of_a_user_sees_ports_below_1024() {
    let host = Host::new();
    let socat = Process::start(&host, "socat", &["TCP-LISTEN:81", "STDOUT"]);
    let _socat = socat.wait_listening(&[v4([127, 0, 0, 1], 81)]);
    let doctor = |listen| {
        let user = [
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
        ];
        let args = [&user[..], &[BINARY, "doctor", "--listen", listen]].concat();
        let mut command = Command::new("setpriv");
        stdout_text(&host.output(command.args(args), ""))
    };
    assert_contains(
        &doctor("127.0.0.1:81"),
        &["warn  listener: TCP 127.0.0.1:81 is in use; "],
    );
    assert_contains(
        &doctor("127.0.0.1:82"),
        &["FAIL  listener: TCP 127.0.0.1:82: bind(2)"],
    );
}

/// `doctor --admin` is a probe for containers without an HTTP client.
#[test]
fn doctor_reports_readiness_of_a_running_proxy() {
    let scratch = Scratch::new();
    let socket = format!("unix:{}", scratch.path_text("admin.sock"));
    let rig = ProxyRig::new(&["--admin", &socket, "--drain=60s"]);
    let host = &rig.lab.server;
    let probe = || {
        let output = Peername::run(host, &["doctor", "--admin", &socket]);
        let report = stdout_text(&output);
        (output.status.code(), report)
    };
    let ready = "ok    readiness: clients should be sent here\n";
    assert_eq!(probe(), (Some(0), ready.to_owned()));
    let open = rig.connect_client(v4([203, 0, 113, 7], 56324));
    rig.proxy.signal(Signal::TERM);
    let report = wait_for("unreadiness", || match probe() {
        (Some(3), report) => Some(report),
        _ => None,
    });
    assert!(report.starts_with("FAIL  readiness: "), "{report}");
    assert!(
        report.ends_with("503 Service Unavailable: draining\n"),
        "{report}"
    );
    drop(open);
    wait_until("the proxy's exit", || {
        let (code, report) = probe();
        code == Some(3) && report.contains("connect(2)")
    });
}

/// `doctor --config` asks the admin endpoint that the file names, and warns of refused connections and of a refused reload.
#[test]
fn doctor_reports_refusals_and_refused_reloads_of_a_running_proxy() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let config = "admin = \"127.0.0.1:9300\"\n[[listen]]\naddress = \"10.81.0.1:8443\"\n\
                  trust = \"192.0.2.11\"\ntarget = \"127.0.0.1:9000\"\n";
    let file = scratch.write("proxy.toml", config);
    let report = || stdout_text(&Peername::run(&lab.server, &["doctor", "--config", &file]));
    let absent = report();
    assert_contains(
        &absent,
        &["ok    running proxy: none answers at 127.0.0.1:9300\n"],
    );
    let args = ["proxy", "--log-format=json", "--config", &file];
    let proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
    drop(Conn::try_connect(&lab.balancer, LISTEN_V4));
    let expected = [
        "warn  refusals: 1 since its start, untrusted_peer, the last ",
        "s ago from 10.81.0.2; If it is a balancer of yours, add its address to --trust.\n",
    ];
    wait_for("the refusal", || {
        let report = report();
        expected
            .iter()
            .all(|part| report.contains(part))
            .then_some(())
    });
    scratch.write("proxy.toml", &config.replace("192.0.2.11", "nobody"));
    proxy.reload("reload refused");
    scratch.write("proxy.toml", config);
    let expected = "warn  running proxy: its last reload was refused: ";
    wait_for("the refused reload", || {
        report().contains(expected).then_some(())
    });
    // The times have whole seconds.
    thread::sleep(Duration::from_secs(1));
    scratch.write("proxy.toml", &config.replace("192.0.2.11", "10.81.0.2"));
    proxy.reload("\"reloaded\"");
    let repaired = report();
    assert_contains(
        &repaired,
        &[
            "ok    refusals: 1 since its start, ",
            ", before the last reload\n",
        ],
    );
}

/// If the backend's replies leave this host, no client is served.
#[test]
fn proxy_without_a_reply_path_is_not_ready() {
    let lab = Lab::without_routes();
    let proxy = Peername::proxy(&lab, &[ADMIN]);
    let ready = get(&lab.server, &[], "/readyz");
    assert!(
        ready.contains("do not come back to this host") && ready.ends_with("503"),
        "{ready}\n{}",
        proxy.log()
    );
}

/// The first connect timeout triggers a probe of the reply path; the periodic probe would be up to a minute late.
#[test]
fn reply_path_that_breaks_makes_the_proxy_unready_at_once() {
    let rig = ProxyRig::new(&[ADMIN, "--connect-timeout=500ms"]);
    let host = &rig.lab.server;
    drop(rig.connect_client(v4([203, 0, 113, 7], 56324)));
    assert_eq!(get(host, &[], "/readyz"), "ready\n200");
    host.run(
        "sh",
        &["-c", "ip rule flush && ip rule add lookup main pref 32766"],
    );
    let lost = rig.connect_and_send(&header_for(v4([203, 0, 113, 8], 56325)));
    lost.wait_closed();
    rig.proxy.wait_outcome("connect_timeout");
    wait_until("unreadiness", || {
        let ready = get(host, &[], "/readyz");
        ready.contains("do not come back") && ready.ends_with("503")
    });
}

/// One process serves Prometheus over TCP and the operator over a Unix socket. Only the socket allows changes. The addresses
/// come from options or from a file.
#[test]
fn endpoint_is_served_on_each_address() {
    let scratch = Scratch::new();
    let path = scratch.path_text("admin.sock");
    let socket = format!("unix:{path}");
    let assert_served = |host: &Host| {
        let by_path = ["--unix-socket", &path];
        let put = ["-X", "PUT", "-d", "debug"];
        let level = |by: &[&str]| get(host, &[by, &put].concat(), "/log-level");
        for by in [&[][..], &by_path] {
            assert_eq!(get(host, by, "/readyz"), "ready\n200");
            wait_metric(host, by, "peername_connections_active 0");
        }
        assert!(level(&[]).ends_with("403"));
        assert_eq!(level(&by_path), "debug\n200");
        let config = get(host, &[], "/config");
        assert_contains(&config, &["\"127.0.0.1:9300\"", &socket]);
    };
    let rig = ProxyRig::new(&[ADMIN, "--admin", &socket]);
    assert_served(&rig.lab.server);
    drop(rig);

    let lab = Lab::new();
    let file = scratch.path_text("peername.toml");
    let text = format!(
        "admin = [\"127.0.0.1:9300\", \"{socket}\"]\n[[listen]]\naddress = [\"{LISTEN_V4}\"]\n\
         target-v4 = \"{TARGET_V4}\"\ntrust = [\"10.81.0.0/24\"]\n"
    );
    fs::write(&file, text).expect("a file");
    let mut proxy = Peername::start(&lab.server, &["proxy", "--config", &file], &[LISTEN_V4]);
    assert_served(&lab.server);
    proxy.stop();
    assert!(!fs::exists(&path).expect("stat"));
}

/// The mode of the socket excludes other users. It serves health and metrics as TCP does.
#[test]
fn unix_socket_is_for_its_owner_and_group() {
    let scratch = Scratch::new();
    let path = scratch.path_text("admin.sock");
    let rig = ProxyRig::new(&[&format!("--admin=unix:{path}")]);
    let mode = rig.lab.server.run("stat", &["-c", "%a %F", &path]);
    assert_eq!(mode.trim(), "660 socket");
    let args = ["--unix-socket", &path];
    assert_eq!(get(&rig.lab.server, &args, "/readyz"), "ready\n200");
    wait_metric(&rig.lab.server, &args, "peername_connections_active 0");
}

/// A response with status 405 lists the allowed methods (RFC 9110, section 15.5.6).
#[test]
fn refused_method_names_those_that_are_allowed() {
    let scratch = Scratch::new();
    let path = scratch.path_text("admin.sock");
    let rig = ProxyRig::new(&[ADMIN, &format!("--admin=unix:{path}")]);
    for (by, allowed) in [
        (&[][..], "GET, HEAD"),
        (&["--unix-socket", &path], "GET, HEAD, PUT, DELETE"),
    ] {
        let args = [by, &["-X", "POST", "-i"]].concat();
        let response = get(&rig.lab.server, &args, "/readyz");
        assert_contains(&response, &["405", &format!("\r\nallow: {allowed}\r\n")]);
    }
}

/// `ssh -L PORT:/run/peername/admin.sock` lets a browser reach the socket. A web page that makes its own name resolve to
/// 127.0.0.1 can neither read nor change anything.
#[test]
fn forwarded_unix_socket_refuses_other_hosts_and_origins() {
    let scratch = Scratch::new();
    let path = scratch.path_text("admin.sock");
    let rig = ProxyRig::new(&[&format!("--admin=unix:{path}")]);
    let host = &rig.lab.server;
    let socket = format!("UNIX-CONNECT:{path}");
    let forward = ["TCP-LISTEN:9300,bind=127.0.0.1,reuseaddr,fork", &socket];
    let _forward =
        Process::start(host, "socat", &forward).wait_listening(&[v4([127, 0, 0, 1], 9300)]);
    let (down, up) = rig.connect_client(v4([203, 0, 113, 7], 56324));
    let listed = list(host, &[], "/connections");
    let id = format!("/connections/{}", listed[0]["id"]);
    let put = ["-X", "PUT", "-d", "debug"];
    for header in ["Host: evil.example", "Origin: http://evil.example"] {
        for (args, path) in [
            (&[][..], "/connections"),
            (&["-X", "DELETE"], &*id),
            (&put, "/log-level"),
        ] {
            let answer = get(host, &[args, &["-H", header]].concat(), path);
            assert!(answer.ends_with("421"), "{header}: {path}: {answer}");
        }
    }
    down.assert_reaches(&up, b"ping");
    assert_eq!(
        get(host, &["--http1.0", "-H", "Host:"], "/readyz"),
        "ready\n200"
    );
    assert_eq!(get(host, &put, "/log-level"), "debug\n200");
}

/// A balancer sends no clients to a node in maintenance. The node keeps serving its open connections, and new ones that come
/// nevertheless.
#[test]
fn maintenance_makes_a_node_unready_and_keeps_it_serving() {
    let scratch = Scratch::new();
    let path = scratch.path_text("admin.sock");
    let rig = ProxyRig::new(&[ADMIN, &format!("--admin=unix:{path}")]);
    let host = &rig.lab.server;
    let put = |by: &[&str], word| get(host, &[by, &["-X", "PUT", "-d", word]].concat(), "/readyz");
    let by_path = ["--unix-socket", &path];
    let (down, up) = rig.connect_client(v4([203, 0, 113, 7], 56324));
    assert!(put(&[], "maintenance").ends_with("403"));
    assert!(put(&by_path, "nonsense").ends_with("400"));
    assert_eq!(get(host, &[], "/readyz"), "ready\n200");
    assert_eq!(put(&by_path, "maintenance"), "maintenance\n200");
    let unready = get(host, &[], "/readyz");
    assert!(
        unready.starts_with("maintenance") && unready.ends_with("503"),
        "{unready}"
    );
    let status = get(host, &[], "/status");
    assert_contains(&status, &["\"not_ready\": \"maintenance"]);
    wait_metric(host, &[], "peername_ready 0");
    down.assert_reaches(&up, b"ping");
    drop(rig.connect_client(v4([203, 0, 113, 7], 56325)));
    assert_eq!(put(&by_path, "ready"), "ready\n200");
    assert_eq!(get(host, &[], "/readyz"), "ready\n200");
    wait_metric(host, &[], "peername_ready 1");
}

/// Clients that stay silent or do not read are evicted, so that a probe is answered at once.
#[test]
fn silent_clients_do_not_delay_a_probe() {
    let rig = ProxyRig::new(&[ADMIN]);
    let host = &rig.lab.server;
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let slow: Vec<_> = (0..64)
        .map(|number| {
            let bytes: &[u8] = if number % 2 == 0 {
                b"GET /hea"
            } else {
                request
            };
            Conn::connect_and_send(host, v4([127, 0, 0, 1], 9300), bytes)
        })
        .collect();
    assert_eq!(get(host, &["--max-time", "5"], "/healthz"), "ok\n200");
    drop(slow);
}

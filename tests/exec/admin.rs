//! `peername exec --admin`: metrics, health and the level of the log, with Redis as the program, in each mode.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::admin::{ADMIN, get, wait_answer, wait_metric};
use crate::harness::conn::Conn;
use crate::harness::header_bytes;
use crate::harness::lab::{
    Host, Lab, Process, Scratch, assert_contains, assert_fails, stdout_text, wait_until,
};
use crate::harness::peername::{
    AS_NOBODY, BINARY, NO_CAPABILITIES, Peername, copy_executable, words,
};
use crate::harness::programs::browser::wait_page_shows;
use crate::harness::rig::exec::{MODES, NOTIFY, PRELOAD, built_library, v2};
use crate::harness::rig::exec_notify::{kill_pid, wait_helper_pid};

/// Redis behind `peername exec`, whose admin endpoint is at an address and at a Unix socket.
struct Served {
    process: Process,
    lab: Lab,
    socket: String,
    _scratch: Scratch,
}

impl Served {
    fn start(mode: &str, options: &[&str]) -> Self {
        Self::start_through(mode, &[], options)
    }

    fn start_through(mode: &str, through: &[&str], options: &[&str]) -> Self {
        built_library();
        let (lab, scratch) = (Lab::without_routes(), Scratch::new());
        let socket = scratch.path_text("admin.sock");
        let unix_admin = format!("--admin=unix:{socket}");
        let binary = match through {
            [] => BINARY.to_owned(),
            _ => copy_executable(&lab.server, &scratch),
        };
        let args = [
            &[
                "exec",
                mode,
                "--trust=private",
                "--ports=8443",
                ADMIN,
                &unix_admin,
            ][..],
            options,
            &["--", "redis-server", "--bind", "0.0.0.0", "--port", "8443"],
            &["--protected-mode", "no", "--save", ""],
        ]
        .concat();
        let process = Process::start_through(&lab.server, through, &binary, &args);
        Self {
            process: process.wait_listening(&[LISTEN_V4]),
            lab,
            socket,
            _scratch: scratch,
        }
    }

    fn send(&self, bytes: &[u8]) -> Conn {
        Conn::connect_and_send(&self.lab.balancer, LISTEN_V4, bytes)
    }

    /// Asserts that Redis itself reports this client.
    #[track_caller]
    fn assert_serves(&self, client: SocketAddr) {
        let conn = self.send(&[&v2(client)[..], b"CLIENT INFO\r\n"].concat());
        conn.recv_text_until(|text| text.contains(&format!(" addr={client} ")));
    }

    fn get(&self, path: &str) -> String {
        get(&self.lab.server, &[], path)
    }

    fn wait_metric(&self, line: &str) {
        wait_metric(&self.lab.server, &[], line);
    }
}

#[test]
fn metrics_agree_with_what_redis_and_the_clients_saw() {
    for mode in MODES {
        let served = Served::start(mode, &["--deny-client=203.0.113.99"]);
        assert_eq!(served.get("/healthz"), "ok\n200", "{mode}");
        assert_eq!(served.get("/readyz"), "ready\n200", "{mode}");
        served.wait_metric("peername_ready 1");
        served.assert_serves(fresh_client_v4());
        served.assert_serves(fresh_client_v4());
        let refused: [&[u8]; 3] = [
            b"PING\r\n",
            &v2("127.0.0.1:4711".parse().expect("an address")),
            &v2("203.0.113.99:4711".parse().expect("an address")),
        ];
        for bytes in refused {
            served.send(bytes).wait_reset();
        }
        let slow = served.send(&v2(fresh_client_v4())[..20]);
        for line in [
            "peername_connections_accepted_total 5",
            "peername_connections_total{protocol=\"tcp\",outcome=\"handed_over\"} 2",
            "peername_connections_total{protocol=\"tcp\",outcome=\"no_header\"} 1",
            "peername_header_errors_total{reason=\"no_header\"} 1",
            "peername_denied_total{reason=\"source_refused\"} 1",
            "peername_denied_total{reason=\"client_denied\"} 1",
            "peername_exec_pending_headers 1",
            "peername_exec_table_slots 65536",
        ] {
            served.wait_metric(line);
        }
        let metrics = served.get("/metrics");
        assert_contains(&metrics, &["peername_build_info{version="]);
        let status = served.get("/status");
        assert_contains(&status, &["\"command\": \"exec\""]);
        let config = served.get("/config");
        assert_contains(
            &config,
            &[
                "\"redis-server\"",
                "\"203.0.113.99\"",
                "\"header-timeout\": \"5s\"",
            ],
        );
        assert!(!config.contains("--protected-mode"), "{config}");
        drop(slow);
        served.wait_metric("peername_exec_pending_headers 0");
    }
}

/// Whether the library admits them or, as with lists of clients, the header waiter.
#[test]
fn headers_without_a_client_are_counted_as_handed_over() {
    for mode in MODES {
        for options in [&[][..], &["--deny-client=203.0.113.99"]] {
            let served = Served::start(mode, options);
            for header in without_client() {
                let conn = served.send(&[&header[..], b"PING\r\n"].concat());
                conn.recv_text_until(|text| text == "+PONG\r\n");
            }
            for line in [
                "peername_connections_accepted_total 3",
                "peername_connections_total{protocol=\"tcp\",outcome=\"handed_over\"} 3",
            ] {
                served.wait_metric(line);
            }
        }
    }
}

/// Headers of the balancer's own connections.
fn without_client() -> [Vec<u8>; 3] {
    [
        b"PROXY UNKNOWN\r\n".to_vec(),
        header_bytes::raw(header_bytes::LOCAL, header_bytes::UNSPEC, &[]),
        header_bytes::nlb_health_check(),
    ]
}

/// Connections without a header that the program gets are counted as `passed_through`.
#[test]
fn optional_headers_are_counted() {
    for mode in MODES {
        let served = Served::start(mode, &["--header=optional"]);
        let conn = served.send(b"PING\r\n");
        conn.recv_text_until(|text| text == "+PONG\r\n");
        served.wait_metric(
            "peername_connections_total{protocol=\"tcp\",outcome=\"passed_through\"} 1",
        );
    }
}

#[test]
fn list_that_can_not_be_read_sets_the_gauge() {
    for mode in MODES {
        let list = Scratch::new();
        let path = list.write("denied", "");
        let served = Served::start(mode, &[&format!("--deny-client=@{path}")]);
        served.wait_metric("peername_lists_stale 0");
        for (text, line) in [
            ("nonsense\n", "\npeername_lists_stale 1\n"),
            ("192.0.2.7\n", "\npeername_lists_stale 0\n"),
        ] {
            list.write("denied", text);
            // The supervisor checks the file for changes when a client comes.
            wait_until(line, || {
                served.assert_serves(fresh_client_v4());
                served.get("/metrics").contains(line)
            });
        }
    }
}

#[test]
fn level_of_the_log_is_changed_over_the_unix_socket() {
    for mode in MODES {
        let served = Served::start(mode, &[]);
        let host = &served.lab.server;
        let refuse = || served.send(b"PING\r\n").wait_reset();
        let lines = || served.process.log().matches("refused a").count();
        let put = ["-X", "PUT", "-d", "debug"];
        assert!(get(host, &put, "/log-level").ends_with("403"));
        refuse();
        wait_until("the first line", || lines() == 1);
        let put_by_unix_socket = [&["--unix-socket", &served.socket][..], &put].concat();
        assert_eq!(get(host, &put_by_unix_socket, "/log-level"), "debug\n200");
        // At this level each refusal has a line, also within the throttle's interval.
        refuse();
        refuse();
        wait_until("a line each", || lines() == 3);
        assert_eq!(served.get("/log-level"), "debug\n200");
    }
}

/// The endpoint reports a supervisor that was killed, and ends with the program.
#[test]
fn endpoint_reports_the_supervisor_and_ends_with_the_program() {
    let mut served = Served::start(PRELOAD, &[]);
    let supervisor = wait_helper_pid("peername-notify", &served.lab.server.network());
    kill_pid(supervisor);
    wait_until("unreadiness", || {
        let ready = served.get("/readyz");
        ready.contains("the supervisor has exited") && ready.ends_with("503")
    });
    served.wait_metric("peername_ready 0");
    assert_eq!(
        served.get("/healthz"),
        "the supervisor does not answer\n503"
    );
    served.assert_serves(fresh_client_v4());
    served.wait_metric("peername_connections_total{protocol=\"tcp\",outcome=\"handed_over\"} 1");

    served.process.signal(Signal::TERM);
    assert!(served.process.wait_exit(Duration::from_secs(5)).is_some());
    wait_until("the end of the endpoint", || {
        !fs::exists(&served.socket).expect("stat")
    });
}

/// The program does not depend on the endpoint's process.
#[test]
fn killed_endpoint_is_reported_and_harms_no_client() {
    for mode in MODES {
        let served = Served::start(mode, &[]);
        kill_pid(wait_helper_pid(
            "peername-admin",
            &served.lab.server.network(),
        ));
        served.process.wait_logged("the admin endpoint has exited");
        served.assert_serves(fresh_client_v4());
    }
}

/// The endpoint's sockets are in the host's network and not in the program's private one, also if an ordinary user runs `exec`.
/// Connections are counted at their end, with or without a client in the header.
#[test]
fn netns_serves_the_endpoint_outside() {
    for through in [&[][..], &[AS_NOBODY, NO_CAPABILITIES].concat()] {
        let lab = Lab::without_routes();
        let scratch = Scratch::new();
        let binary = copy_executable(&lab.server, &scratch);
        let socket = scratch.path_text("admin.sock");
        let line = format!(
            "exec --mode=netns --trust=private --ports=8443 {ADMIN} --admin=unix:{socket} --"
        );
        let args = words(&line);
        let redis = [
            "redis-server",
            "--port",
            "8443",
            "--protected-mode",
            "no",
            "--save",
            "",
        ];
        let args = [&args[..], &redis].concat();
        let _process = Process::start_through(&lab.server, through, &binary, &args);
        let host = &lab.server;
        wait_answer(host, "/readyz", "ready\n200");
        let client = fresh_client_v4();
        let request = [&v2(client)[..], b"CLIENT INFO\r\nQUIT\r\n"].concat();
        wait_until("the client in Redis", || {
            let conn = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &request);
            let answer = conn.recv_text_to_end();
            answer.contains(&format!(" addr={client} "))
        });
        wait_metric(
            host,
            &["--unix-socket", &socket],
            "peername_connections_active 0",
        );
        let before = count_finished(host);
        assert!(before > 0);
        for header in without_client() {
            let request = [&header[..], b"PING\r\nQUIT\r\n"].concat();
            let conn = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &request);
            assert_eq!(conn.recv_text_to_end(), "+PONG\r\n+OK\r\n");
        }
        wait_until("the ends", || count_finished(host) == before + 3);
    }
}

/// The value of the counter of connections that ended well, as of `proxy`.
fn count_finished(host: &Host) -> u64 {
    let metrics = get(host, &[], "/metrics");
    let is_finished = |line: &&str| {
        line.starts_with("peername_connections_total{") && line.contains("\"finished\"")
    };
    let line = metrics.lines().find(is_finished).unwrap_or_default();
    let value = line.rsplit(' ').next();
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

#[test]
fn address_in_use_fails_before_the_program_starts() {
    built_library();
    let lab = Lab::without_routes();
    let _other = Process::start(
        &lab.server,
        "redis-server",
        &["--port", "9300", "--save", ""],
    )
    .wait_listening(&["127.0.0.1:9300".parse().expect("an address")]);
    for mode in [PRELOAD, NOTIFY, "--mode=netns"] {
        let line = format!("exec {mode} --trust=private --ports=8443 {ADMIN} -- echo started");
        let args = words(&line);
        let output = Peername::run(&lab.server, &args);
        assert_fails(&output, 125, &["--admin: can't listen on 127.0.0.1:9300"]);
        assert_eq!(output.stdout, b"");
    }
}

/// The page and `top` show refusals with what to do about them; the page says where the connections are.
#[test]
fn page_and_top_show_refusals_with_their_remedy() {
    let served = Served::start(PRELOAD, &[]);
    let host = &served.lab.server;
    served.assert_serves(fresh_client_v4());
    served.send(b"PING\r\n").wait_reset();
    let shown = [
        "peername exec",
        "ready",
        "no_header\tconnections\t1\t",
        "Turn the PROXY protocol on at the balancer.",
        "handed_over\t1",
        "Open connections are the program's own",
    ];
    wait_page_shows(host, &shown);
    let top = Peername::run(host, &["top", "--admin", "127.0.0.1:9300"]);
    assert_contains(&stdout_text(&top), &["peername exec", "no_header 1"]);
}

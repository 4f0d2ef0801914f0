//! go-mmproxy, of kzemek and of path-network: README, example unit, log, exit codes.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::addr::{fresh_client_v4, v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::{Host, Process, Scratch, assert_fails, wait_for};
use crate::harness::peername::{AS_NOBODY, Peername, copy_executable, words};
use crate::harness::rig::compat::{
    CompatRig, ROUTES, ROUTES_V6, first_peer, start_address_echo, start_netcat, wait_listening,
};

/// A typical first try: backend and client both on this machine, netcat on either side.
#[test]
fn netcat_on_one_machine_works() {
    let (rig, host) = (CompatRig::new(), Host::new());
    let backend = start_netcat(&host, "nc -kvnl 25578");
    let proxy = rig.start(
        &host,
        "sudo ./go-mmproxy -l 0.0.0.0:25577 -4 127.0.0.1:25578 -6 [::1]:25578",
    );
    wait_listening(&proxy);
    let output = rig.run(
        &host,
        r"printf 'PROXY TCP4 127.0.0.1 127.0.0.1 65432 25578\r\nPING\r\n' | nc -q1 127.0.0.1 25577",
    );
    assert!(output.status.success(), "{output:?}");
    assert_eq!(first_peer(&backend), v4([127, 0, 0, 1], 65432));
    backend.wait_line("the message", |line| (line.trim() == "PING").then_some(()));
}

/// The README's command, its list of networks included.
#[test]
fn path_networks_readme_works() {
    let (rig, host) = (CompatRig::new(), Host::new());
    host.ip(ROUTES);
    host.ip6(ROUTES_V6);
    rig.0.write("path-prefixes.txt", "127.0.0.0/9");
    let v4_backend = Backend::listen(&host, v4([127, 0, 0, 1], 25578));
    let v6_backend = Backend::listen(&host, "[::1]:25578".parse().expect("an address"));
    let _proxy = rig
        .start(
            &host,
            "sudo ./go-mmproxy -l 0.0.0.0:25577 -4 127.0.0.1:25578 -6 [::1]:25578 --allowed-subnets ./path-prefixes.txt",
        )
        .wait_listening(&[v4([127, 0, 0, 1], 25577)]);
    // Including an IPv6 client behind an IPv4 balancer, which go-mmproxy dropped.
    for client in [fresh_client_v4(), crate::harness::addr::fresh_client_v6()] {
        let backend = if client.is_ipv4() {
            &v4_backend
        } else {
            &v6_backend
        };
        let down = Conn::connect(&host, v4([127, 0, 0, 1], 25577));
        down.send(&header_bytes::v1(
            client,
            crate::harness::rig::proxy::front_of(client),
        ));
        let up = backend.accept_from(client);
        up.assert_reaches(&down, b"answer");
    }
    let stranger =
        host.enter(|| socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None));
    let stranger = stranger.expect("a socket");
    stranger
        .bind(&v4([127, 200, 0, 1], 0).into())
        .expect("bind");
    stranger
        .connect(&v4([127, 0, 0, 1], 25577).into())
        .expect("connect");
    Conn::new(stranger.into()).wait_closed();
}

/// The example unit: its ExecStart, its bounding set, and its routes, which are added after the start.
#[test]
fn example_unit_works() {
    let (rig, host) = (CompatRig::new(), Host::new());
    let list = rig.0.write(
        "net-prefixes.txt",
        "# This is a comment\n127.0.0.0/8 # allow local\n",
    );
    let exec_start = EXEC_START
        .replace("/usr/bin/go-mmproxy", "go-mmproxy")
        .replace("/usr/share/net-prefixes.txt", &list);
    let backend = Backend::listen(&host, v4([127, 0, 0, 1], 1000));
    let bounding = [
        "setpriv",
        "--bounding-set=-all,+net_admin,+net_bind_service",
    ];
    let mut unit = rig.start_with(&host, &bounding, &exec_start);
    wait_listening(&unit);
    for line in EXEC_START_POST {
        host.run("/sbin/ip", &line.split(' ').skip(1).collect::<Vec<_>>());
    }
    let client = v4([203, 0, 113, 7], 5555);
    let up = wait_for("the routes are noticed", || {
        let _down = Conn::connect_and_send(
            &host,
            v4([127, 0, 0, 1], 1234),
            &header_bytes::v1(client, client),
        );
        backend.accept_within(Duration::from_millis(100))
    });
    assert_eq!(up.peer_addr(), client);
    drop(up);
    unit.signal(Signal::TERM);
    unit.wait_success(Duration::from_secs(5));
    for line in EXEC_START_POST {
        let undo = line.replace(" add ", " del ");
        host.run("/sbin/ip", &undo.split(' ').skip(1).collect::<Vec<_>>());
    }
}

/// The bounding set of path-network's unit suffices, because CAP_NET_ADMIN permits spoofed sources as well. The
/// capabilities come from the file, or under `no_new_privs` (as with `DynamicUser=`) from the ambient set of a drop-in.
/// Without either, the error names the ambient set, which would work.
#[test]
fn path_networks_bounding_set_suffices() {
    let (scratch, host) = (Scratch::new(), Host::new());
    host.ip(ROUTES);
    let copy = copy_executable(&host, &scratch);
    scratch.write("subnets", "127.0.0.0/8\n");
    host.run("setcap", &["cap_net_admin,cap_net_bind_service+ep", &copy]);
    let bounding = "--bounding-set=-all,+net_admin,+net_bind_service";
    let list = scratch.path_text("subnets");
    let line =
        format!("--compat=go-mmproxy -l 127.0.0.1:443 -4 127.0.0.1:1000 -allowed-subnets {list}");
    let args = words(&line);
    let ambient: &[&str] = &[
        "--no-new-privs",
        "--inh-caps=-all,+net_admin,+net_bind_service",
        "--ambient-caps=+net_admin,+net_bind_service",
    ];
    let backend = Backend::listen(&host, v4([127, 0, 0, 1], 1000));
    let listen = v4([127, 0, 0, 1], 443);
    for capabilities in [&[][..], ambient] {
        let through = [AS_NOBODY, &[bounding], capabilities].concat();
        let _proxy =
            Process::start_through(&host, &through, &copy, &args).wait_listening(&[listen]);
        let client = fresh_client_v4();
        let _down = Conn::connect_and_send(&host, listen, &header_bytes::v1(client, listen));
        assert_eq!(backend.accept().peer_addr(), client);
    }
    // setpriv itself keeps the capabilities in the bounding set; the program that it executes has none.
    let program = [AS_NOBODY, &[bounding, "setpriv", "--no-new-privs", &copy]].concat();
    let output = Peername::run_with_input(&host, &program, &args, "");
    assert_fails(
        &output,
        1,
        &["AmbientCapabilities=CAP_NET_ADMIN CAP_NET_BIND_SERVICE"],
    );
}

/// Every line on standard output is JSON with go-mmproxy's keys. Errors are logged from level 1 on, the end of each connection
/// at level 2.
#[test]
fn log_has_go_mmproxys_keys() {
    let (rig, host) = (CompatRig::new(), Host::new());
    host.ip(ROUTES);
    for (level, logs_errors, logs_ends) in
        [("0", false, false), ("1", true, false), ("2", true, true)]
    {
        let (client, text) = log_at_level(&rig, &host, level);
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
            .collect();
        let find = |phrase: &str| {
            lines.iter().find(|line| {
                line["msg"] == phrase || line["error"].as_str().is_some_and(|e| e.contains(phrase))
            })
        };
        let listening = find("listening").expect("the first line");
        for (key, value) in [
            ("listenerNum", "0"),
            ("protocol", "\"TCP\""),
            ("listenAddr", "\"0.0.0.0:8443\""),
        ] {
            assert_eq!(listening[key].to_string(), value, "{text}");
        }
        assert!(
            listening["time"].is_string() && listening["level"] == "INFO",
            "{text}"
        );
        let subnets: Vec<_> = lines
            .iter()
            .filter(|line| line["msg"] == "allowed subnet")
            .map(|line| &line["subnet"])
            .collect();
        assert_eq!(subnets, ["127.0.0.0/8", "2001:db8::/32"], "{text}");
        // No IPv6 target was configured, so there is no warning about one.
        assert!(
            !lines
                .iter()
                .any(|line| line["level"] == "WARN" && line.to_string().contains("[::1]")),
            "{text}"
        );
        for phrase in ["PROXY header missing", "failed to establish"] {
            let found = find(phrase);
            assert_eq!(
                found.is_some(),
                logs_errors,
                "{phrase} at level {level}:\n{text}"
            );
            if let Some(found) = found {
                assert!(found["frontendRemoteAddr"].is_string(), "{found}");
                assert_eq!(found["frontendLocalAddr"], "127.0.0.1:8443");
            }
        }
        let closing = find("connection closing");
        assert_eq!(closing.is_some(), logs_ends, "level {level}:\n{text}");
        if let Some(closing) = closing {
            assert_eq!(closing["clientAddr"], client.to_string());
            assert_eq!(closing["targetAddr"], "127.0.0.1:9000");
        }
    }
}

/// Runs the proxy at a log level while one client sends no header, one is served, and one finds no backend. Returns the client
/// that was served, and the log.
fn log_at_level(rig: &CompatRig, host: &Host, level: &str) -> (SocketAddr, String) {
    let backend = Backend::listen(host, v4([127, 0, 0, 1], 9000));
    let file = rig.0.path_text(&format!("log-{level}"));
    rig.0.write("subnets", "127.0.0.0/8\n2001:db8::/32\n");
    let line = format!(
        "go-mmproxy -l 0.0.0.0:8443 -4 localhost:9000 -allowed-subnets subnets -v {level} >{file}"
    );
    let mut proxy = rig.start(host, &line).wait_listening(&[LISTEN]);
    let missing = Conn::connect_and_send(host, LISTEN, b"GET / HTTP/1.1\r\n\r\n");
    missing.wait_closed();
    let client = fresh_client_v4();
    let down = Conn::connect_and_send(host, LISTEN, &header_bytes::v1(client, LISTEN));
    let up = backend.accept();
    down.shutdown_write();
    up.shutdown_write();
    up.recv_to_end();
    drop((down, up, backend));
    let refused =
        Conn::connect_and_send(host, LISTEN, &header_bytes::v1(fresh_client_v4(), LISTEN));
    refused.wait_closed();
    proxy.signal(Signal::TERM);
    assert!(proxy.wait_exit(Duration::from_secs(5)).is_some());
    (client, rig.0.read(&format!("log-{level}")))
}

#[test]
fn udp_options_work() {
    let (rig, host) = (CompatRig::new(), Host::new());
    host.ip(ROUTES);
    host.ip6(ROUTES_V6);
    let _v4 = start_address_echo(&host, v4([127, 0, 0, 1], 25578));
    let _v6 = start_address_echo(&host, "[::1]:25578".parse().expect("an address"));
    let proxy = rig.start(
        &host,
        "./go-mmproxy -p udp -l 0.0.0.0:25577 -4 127.0.0.1:25578 -6 [::1]:25578 -close-after 1 -listeners 2 -v 1",
    );
    wait_listening(&proxy);
    let front = v4([127, 0, 0, 1], 25577);
    let direct = DatagramSocket::bind(&host, v4([127, 0, 0, 1], 0));
    direct.send(front, &[b"a client that came without the balancer"]);
    let dropped = proxy.wait_logged("PROXY header missing");
    let dropped: Value = serde_json::from_str(&dropped).expect("JSON");
    let sender = direct.socket().local_addr().expect("getsockname");
    assert_eq!(dropped["frontendRemoteAddr"], sender.to_string());
    assert_eq!(dropped["protocol"], "UDP");
    for client in [fresh_client_v4(), crate::harness::addr::fresh_client_v6()] {
        let balancer = DatagramSocket::bind(&host, v4([127, 0, 0, 1], 0));
        for _ in 0..2 {
            let header = header_bytes::v2_udp(client, crate::harness::rig::proxy::front_of(client));
            balancer.send(front, &[&header, b"ping"]);
            let answer = format!("{} {} ping", client.ip(), client.port());
            balancer.expect_datagram(answer.as_bytes(), front);
            // The session expires meanwhile, so the second datagram begins another one.
            std::thread::sleep(Duration::from_millis(1200));
        }
    }
}

/// An invalid flag exits with 2, as in Go's `flag` package. A start that fails later exits with 1, never with 0.
#[test]
fn exit_codes_are_go_mmproxys_except_for_a_failed_start() {
    let (rig, host) = (CompatRig::new(), Host::new());
    rig.0.write("bad.txt", "10.0.0.0/8\nlb.example\n");
    let _taken = Backend::listen(&host, LISTEN);
    let table = [
        ("-v2", 2, "flag provided but not defined: -v2"),
        ("-l 127.0.0.1:8443", 1, "can't listen on 127.0.0.1:8443"),
        ("-l :9000", 1, ""),
        ("-4 [::1]:1", 1, "IPv4"),
        ("-6 127.0.0.1:1", 1, "IPv6"),
        ("-allowed-subnets bad.txt", 1, "bad.txt, line 2: neither"),
        ("-allowed-subnets none.txt", 1, "none.txt"),
        (
            "-allowed-subnets none.txt",
            1,
            "--trust stands for go-mmproxy's -allowed-subnets\n",
        ),
        ("-4 x", 1, "--target-v4 stands for go-mmproxy's -4\n"),
    ];
    for (flags, code, text) in table {
        rig.assert_exits(&host, &format!("go-mmproxy {flags}"), code, text);
    }
}

/// The log names the equivalent `peername` command, and warns that any peer may send headers.
#[test]
fn log_names_peername_and_warns_of_open_trust() {
    let (rig, host) = (CompatRig::new(), Host::new());
    let proxy = rig.start(&host, "go-mmproxy -l 127.0.0.1:8443 -6 [::1]:1000");
    proxy.wait_logged(
        "use this instead: peername proxy --listen 127.0.0.1:8443 --default-target 127.0.0.1:443 --target-v6 '[::1]:1000' --trust any",
    );
    proxy.wait_logged("WARNING: every peer that reaches this port may claim any client address");
    let proxy = rig.start(
        &host,
        "-a peername mmproxy --compat go-mmproxy -l 127.0.0.1:8444",
    );
    proxy.wait_logged("\"msg\":\"listening\"");
}

const LISTEN: SocketAddr = v4([127, 0, 0, 1], 8443);

/// The commands of `go-mmproxy.service.example`.
const EXEC_START: &str = r#"/usr/bin/go-mmproxy -4 127.0.0.1:1000 -6 "[::1]:1000" -allowed-subnets /usr/share/net-prefixes.txt -l 0.0.0.0:1234"#;
const EXEC_START_POST: [&str; 4] = [
    "/sbin/ip rule add from 127.0.0.1/8 iif lo table 123",
    "/sbin/ip route add local 0.0.0.0/0 dev lo table 123",
    "/sbin/ip -6 rule add from ::1/128 iif lo table 123",
    "/sbin/ip -6 route add local ::/0 dev lo table 123",
];

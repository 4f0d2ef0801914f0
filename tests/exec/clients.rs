//! Lists of clients and required TLVs: a refused connection is reset before the server's accept(2) returns it.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use peername_sys::process::pidfd;

use crate::harness::addr::{
    BALANCER_V4, FRONT_V4, LISTEN_V4, fresh_client_v4, fresh_client_v6, v4, v6,
};
use crate::harness::conn::Conn;
use crate::harness::header_bytes;
use crate::harness::lab::{
    Host, Lab, LeasedFile, Process, Scratch, WAIT_LIMIT, python, wait_until,
};
use crate::harness::peername::{BINARY, words};
use crate::harness::programs::server::nginx;
use crate::harness::rig::exec::{MODES, ProgramRig, ServerRig, pseudo_ipv4, server_pidfd, v1, v2};

/// A denied client gets a reset, whether its header comes whole or in pieces. The server logs each connection that accept(2)
/// returns, and logs none of these.
#[test]
fn denied_client_is_not_accepted() {
    for mode in MODES {
        let list = Scratch::new();
        // A server with an IPv4 socket logs an IPv6 client by a pseudo-address, and a ban may name that.
        let stand_in = pseudo_ipv4("2001:db8:9::7".parse().expect("an address"));
        let denied =
            format!("198.51.100.7 # sshd\n2001:db8:7::/64\n240.0.0.0/4 # no host\n{stand_in}\n");
        let path = list.write("denied", &denied);
        let server = start(mode, &["-v", &format!("--deny-client=@{path}")]);
        let mapped = v6([0, 0, 0, 0, 0, 0xffff, 0xc633, 0x6407], 4001);
        let logged = v6([0x2001, 0xdb8, 9, 0, 0, 0, 0, 7], 4002);
        for client in [fresh_client_v4(), fresh_client_v6(), mapped, logged] {
            let port = client.port();
            assert_refused(&server, &v2(client));
            server.process.wait_line("of the refusal", |line| {
                let of_client = line.starts_with("peername: refused a connection from client ");
                let of_port = line.contains(&format!(":{port} to port 8443: "));
                (of_client && of_port && line.ends_with("(client_denied)")).then_some(())
            });
        }
        let header = v2(fresh_client_v4());
        let slow = connect(&server, &header[..20]);
        slow.assert_stays_open(Duration::from_millis(100));
        slow.send(&header[20..]);
        slow.wait_reset();
        let header = v2(other_client());
        let slow = connect(&server, &header[..20]);
        slow.assert_stays_open(Duration::from_millis(100));
        slow.send(&header[20..]);
        assert_eq!(greeting(&slow), other_client().to_string());
        let clients = [other_client(), v6([0x2001, 0xdb8, 8, 0, 0, 0, 0, 7], 4001)];
        assert_served(&server, &v2(clients[0]), clients[0]);
        let shown = pseudo_ipv4("2001:db8:8::7".parse().expect("an address"));
        assert_served(
            &server,
            &v2(clients[1]),
            SocketAddr::new(shown.into(), 4001),
        );
        assert_accepted(&server, 3);
    }
}

/// A balancer that connects from its clients' own addresses and ports sends headers whose source is the connection's peer. Such
/// a client is subject to the lists. A ban applies to the peer also where the header names no client. An allow list and a
/// required TLV don't apply to the peers of `--health-checks-from`, by default those on this host.
#[test]
fn client_is_judged_although_its_header_names_the_peer() {
    let connect_as_itself = |host: &Host, listener: SocketAddr| {
        let conn = Conn::connect(host, listener);
        conn.send(&header_bytes::v1(conn.local_addr(), LISTEN_V4));
        conn
    };
    let lists = words("-v --allow-client=198.51.100.0/24 --require-tlv=alpn=h2");
    let local = header_bytes::raw(header_bytes::LOCAL, header_bytes::UNSPEC, &[]);
    for mode in MODES {
        let server = start(mode, &["-v", "--deny-client=10.81.0.2"]);
        let conn = connect_as_itself(&server.lab.balancer, LISTEN_V4);
        conn.wait_reset();
        assert_refused(&server, &local);
        assert_refused(&server, b"PROXY UNKNOWN\r\n");
        assert_eq!(accepted(&server), [""; 0]);
        let server = start(mode, &lists);
        let conn = connect_as_itself(&server.lab.balancer, LISTEN_V4);
        conn.wait_reset();
        server.process.wait_logged("--health-checks-from");
        for listener in [LISTEN_V4, ([127, 0, 0, 1], 8443).into()] {
            let conn = connect_as_itself(&server.lab.server, listener);
            assert_eq!(greeting(&conn), conn.local_addr().to_string());
        }
        let listed = [&lists[..], &["--health-checks-from=10.81.0.2"]].concat();
        let server = start(mode, &listed);
        let conn = connect_as_itself(&server.lab.balancer, LISTEN_V4);
        assert_eq!(greeting(&conn), conn.local_addr().to_string());
    }
}

/// Each refusal is logged with the code of its list. A balancer's own connection, such as a health check, is subject to the
/// trust list alone, and is served.
#[test]
fn each_refusal_has_its_code_and_health_checks_are_served() {
    let options =
        words("-v --allow-client=198.51.100.0/24 --deny-client=198.51.100.9 --require-tlv=alpn=h2");
    for mode in MODES {
        let server = start(mode, &options);
        let header =
            |client, alpn: &[u8]| header_bytes::v2(client, FRONT_V4, &header_bytes::tlv(1, alpn));
        let client = fresh_client_v4();
        for (header, code) in [
            (
                header(v4([198, 51, 101, 1], 4001), b"h2"),
                "client_not_allowed",
            ),
            (header(v4([198, 51, 100, 9], 4001), b"h2"), "client_denied"),
            (header(client, b"h3"), "tlv_mismatch"),
            (v2(client), "tlv_missing"),
            (v1(client), "tlv_missing"),
        ] {
            let before = refusals(&server, code);
            assert_refused(&server, &header);
            wait_until(code, || refusals(&server, code) > before);
        }
        assert_served(&server, &header(client, b"h2"), client);
        let local = header_bytes::raw(header_bytes::LOCAL, header_bytes::UNSPEC, &[]);
        for header in [&local[..], b"PROXY UNKNOWN\r\n"] {
            let conn = connect(&server, header);
            assert_eq!(greeting(&conn), conn.local_addr().to_string());
        }
        assert_accepted(&server, 3);
    }
}

/// Connections that are open when a list changes stay open, because only the server has them. The path of a list is relative to
/// the directory in which `exec` was started. A broken list leaves the previous one in force.
#[test]
fn changed_list_is_in_force_within_a_second() {
    for mode in MODES {
        let list = Scratch::new();
        list.write("denied", "");
        let script = format!("-u {}", list.write("server.py", SPEAKS_FIRST[2]));
        let through = ["env", "-C", &list.path_text(".")];
        let options = ["--deny-client=@denied"];
        let python = SPEAKS_FIRST[0];
        let server = ServerRig::start(mode, &through, python, &script, &options);
        let serves = |client| is_served(&server.lab, client);
        let wait_serves = |expected: bool| {
            let start = Instant::now();
            wait_until("the new list", || serves(fresh_client_v4()) == expected);
            assert!(start.elapsed() < IN_FORCE, "{:?}", start.elapsed());
        };
        assert!(serves(fresh_client_v4()));
        let open = server.connect_and_send(&v2(fresh_client_v4()));
        assert!(greeting(&open).starts_with("198.51.100.7:"));
        // Replaces the list by rename: a list that is read while it is written may be empty.
        let replace = |text: &str| {
            list.write("new", text);
            fs::rename(list.path("new"), list.path("denied")).expect("renamed");
        };
        replace("198.51.100.7\n");
        wait_serves(false);
        open.assert_stays_open(Duration::from_millis(100));
        replace("192.0.2.1\nnonsense\n");
        server.process.wait_line("of the broken list", |line| {
            // The supervisor checks the file for changes when a client comes.
            serves(fresh_client_v4());
            line.contains("denied, line 2: neither a network nor an address; the previous lists")
                .then_some(())
        });
        assert!(!serves(fresh_client_v4()));
        list.write("denied", "192.0.2.1\n");
        wait_serves(true);
        open.assert_stays_open(Duration::from_millis(100));
    }
}

/// The list changes when the headers were read, and the server has not accepted yet. One of the denied clients has closed its
/// connection by then, so that it has no peer any more; its request could still be read.
#[test]
fn client_that_is_denied_while_it_waits_is_not_accepted() {
    for mode in MODES {
        let list = Scratch::new();
        let path = list.write("denied", "192.0.2.1\n");
        let server = start(mode, &["-v", &format!("--deny-client=@{path}")]);
        // With notify, the first one gets the call that is pending when the server stops.
        let first = SocketAddr::new(other_client().ip(), 4002);
        let clients = [first, fresh_client_v4(), fresh_client_v4(), other_client()];
        let slow = clients.map(|client| connect(&server, &v2(client)[..20]));
        slow[3].assert_stays_open(Duration::from_millis(100));
        let program = server_pidfd(&server.process);
        program.signal(pidfd::Signal::STOP).expect("it lives");
        for (conn, client) in slow.iter().zip(clients) {
            conn.send(&v2(client)[20..]);
            conn.assert_stays_open(Duration::from_millis(200));
        }
        let [_first, denied, gone, served] = slow;
        gone.send(b"request");
        gone.reset();
        list.write("new", "198.51.100.7\n");
        fs::rename(list.path("new"), list.path("denied")).expect("renamed");
        served.assert_stays_open(IN_FORCE);
        program.signal(pidfd::Signal::CONT).expect("it lives");
        denied.wait_reset();
        assert_eq!(greeting(&served), other_client().to_string());
        wait_until("the refusals", || refusals(&server, "client_denied") == 2);
        assert_accepted(&server, 2);
    }
}

/// The file does not change when it becomes readable again, so the read has to be retried.
#[test]
fn list_that_can_not_be_read_for_a_while_is_read_later() {
    for mode in MODES {
        let list = Scratch::new();
        let path = list.write("denied", "");
        let server = start(mode, &[&format!("--deny-client=@{path}")]);
        let host = &server.lab.server;
        let leased = LeasedFile::replace(host, &list, "denied", "198.51.100.7\n");
        // The supervisor checks the file for changes when a client comes.
        let serves = || is_served(&server.lab, fresh_client_v4());
        wait_until("the failed read", || {
            let stale = "the previous lists stay in force";
            serves() && server.process.count_logged(stale) > 0
        });
        drop(leased);
        wait_until("the list", || !serves());
    }
}

/// Where headers are optional, a peer that sends none is the client. A peer that may not send headers is served at once even if
/// it sends nothing, because the server may speak first.
#[test]
fn peer_without_a_header_is_judged_as_the_client() {
    let own = format!("--deny-client={BALANCER_V4}");
    let other = "--deny-client=198.51.100.7";
    let (trusted, untrusted) = ("--trust=10.81.0.0/24", "--trust=192.0.2.99");
    for mode in MODES {
        for (trust, timeout) in [(untrusted, "60s"), (trusted, "500ms")] {
            let timeout = format!("--header-timeout={timeout}");
            let options = ["-v", "--header=optional", trust, &timeout];
            let server = start(mode, &[&options[..], &[&own]].concat());
            for bytes in [&b""[..], b"GET / HTTP/1.0\r\n\r\n"] {
                assert_refused(&server, bytes);
            }
            wait_until("the refusals", || refusals(&server, "client_denied") == 2);
            if trust == trusted {
                // A peer with an incomplete header is not taken for a silent client, even if the bytes came before the peek.
                assert_refused(&server, &v2(fresh_client_v4())[..12]);
                server
                    .process
                    .wait_logged("its PROXY header was not complete in time");
            }
            assert_eq!(accepted(&server), [""; 0]);
            let server = start(mode, &[&options[..], &[other]].concat());
            for bytes in [&b""[..], b"GET / HTTP/1.0\r\n\r\n"] {
                let conn = connect(&server, bytes);
                assert_eq!(greeting(&conn), conn.local_addr().to_string());
            }
        }
    }
}

/// nginx has two workers that wait in epoll_wait(2). It logs also connections that send no request, and none of a denied
/// client.
#[test]
fn nginx_is_not_disturbed_by_denied_clients() {
    for mode in MODES {
        let scratch = Scratch::new();
        scratch.write("index.html", "hello\n");
        let site = "listen 0.0.0.0:8443; root DIR; error_log DIR/error.log info;";
        let main = "user root; worker_processes 2;";
        let config = nginx::write_config(&scratch, main, nginx::PEER, site);
        let options = ["--deny-client=198.51.100.7"];
        let program = ["nginx", "-e", "stderr", "-c", &config];
        let server = ProgramRig::with_mode(mode, &options, &program);
        let request = b"GET / HTTP/1.0\r\n\r\n";
        for index in 0..20 {
            let denied = [&v2(fresh_client_v4())[..], request].concat();
            assert_refused(&server, &denied);
            let client = v4([198, 51, 100, 8], 4001 + index);
            let conn = connect(&server, &[&v2(client)[..], request].concat());
            assert!(conn.recv_to_end().0.ends_with(b"hello\n"));
            assert_eq!(nginx::logged_client(&scratch, index.into()), client);
        }
        let seen = [scratch.read("access.log"), scratch.read("error.log")].concat();
        assert!(!seen.contains("198.51.100.7"), "{seen}");
        assert_eq!(refusals(&server, "client_denied"), 1, "throttled");
    }
}

/// In this mode `peername proxy` relays the connections, so it ends the open ones of a banned client, too.
#[test]
fn private_network_denies_clients_and_ends_their_connections() {
    let (lab, list) = (Lab::without_routes(), Scratch::new());
    let path = list.write("denied", "198.51.100.7\n");
    let directory = path.strip_suffix("/denied").expect("its directory");
    let mut args = words("exec --mode=netns --ports=8443 --trust=10.81.0.0/24 -v");
    args.extend(["--deny-client=@denied", "--require-tlv=alpn=h2", "--"]);
    args.extend(SPEAKS_FIRST);
    let through = ["env", "-C", directory];
    let server = Process::start_through(&lab.server, &through, BINARY, &args);
    for started in ["\"listening\"", "serving"] {
        server.wait_logged(started);
    }
    let connect = |client| {
        let header = header_bytes::v2(client, FRONT_V4, &header_bytes::tlv(1, b"h2"));
        Conn::connect_and_send(&lab.balancer, LISTEN_V4, &header)
    };
    let wait_outcome = |code: &str| server.wait_logged(&format!("\"{code}\""));
    connect(fresh_client_v4()).wait_reset();
    wait_outcome("client_denied");
    let without_tlv = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &v2(other_client()));
    without_tlv.wait_reset();
    wait_outcome("tlv_missing");
    let open = connect(other_client());
    assert_eq!(greeting(&open), other_client().to_string());
    list.write("denied", "198.51.100.0/24\n");
    open.wait_reset();
    wait_outcome("access_revoked");
    assert_eq!(
        server.log().matches("accepted ").count(),
        1,
        "{}",
        server.log()
    );
}

/// The proxy in the private network has another working directory than the launcher.
#[test]
fn private_network_reads_a_trust_list_with_a_relative_path() {
    let (lab, list) = (Lab::without_routes(), Scratch::new());
    let path = list.write("balancers", "10.81.0.0/24\n");
    let directory = path.strip_suffix("/balancers").expect("its directory");
    let args = words("exec --mode=netns --ports=8443 --trust=@balancers -v --");
    let args = [&args[..], SPEAKS_FIRST].concat();
    let through = ["env", "-C", directory];
    let server = Process::start_through(&lab.server, &through, BINARY, &args);
    server.wait_logged("serving");
    let client = fresh_client_v4();
    let open = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &v2(client));
    assert_eq!(greeting(&open), client.to_string());
}

fn start(mode: &str, options: &[&str]) -> ProgramRig {
    ProgramRig::with_mode(mode, options, SPEAKS_FIRST)
}

fn connect(server: &ProgramRig, bytes: &[u8]) -> Conn {
    Conn::connect_and_send(&server.lab.balancer, LISTEN_V4, bytes)
}

/// The line that the server sends first: the address that accept(2) has returned.
#[track_caller]
fn greeting(conn: &Conn) -> String {
    let text = conn.recv_text_until(|text| text.ends_with('\n'));
    text.trim_end().to_owned()
}

#[track_caller]
fn assert_served(server: &ProgramRig, header: &[u8], client: SocketAddr) {
    assert_eq!(greeting(&connect(server, header)), client.to_string());
}

/// Whether the server's greeting comes, and not a reset.
fn is_served(lab: &Lab, client: SocketAddr) -> bool {
    let conn = Conn::try_connect(&lab.balancer, LISTEN_V4);
    let conn = conn.filter(|conn| conn.send_if_open(&v2(client)));
    conn.is_some_and(|conn| conn.is_answered_after(WAIT_LIMIT))
}

#[track_caller]
fn assert_refused(server: &ProgramRig, bytes: &[u8]) {
    Conn::assert_reset(&server.lab.balancer, LISTEN_V4, bytes);
}

/// Asserts how many connections the server has accepted. Its last line may come a moment later.
#[track_caller]
fn assert_accepted(server: &ProgramRig, count: usize) {
    wait_until("the server's last line", || accepted(server).len() >= count);
    assert_eq!(accepted(server).len(), count, "{}", server.process.log());
}

/// The clients of the connections that the server has accepted.
fn accepted(server: &ProgramRig) -> Vec<String> {
    let log = server.process.log();
    log.lines()
        .filter_map(|line| line.strip_prefix("accepted "))
        .map(str::to_owned)
        .collect()
}

fn refusals(server: &ProgramRig, code: &str) -> usize {
    let code = format!("({code})");
    let log = server.process.log();
    log.lines().filter(|line| line.ends_with(&code)).count()
}

fn other_client() -> SocketAddr {
    v4([198, 51, 100, 8], 4001)
}

/// A blocking accept(2) in one thread. Its connections stay open.
const SPEAKS_FIRST: &[&str] = &python(include_str!("clients/speaks_first.py"));

/// From the change of a list to its effect, as docs/bans.md has it.
const IN_FORCE: Duration = Duration::from_secs(1);

//! The header waiter, which waits for slow headers: what other processes can do to it, and what
//! happens when it has no descriptor left.

mod compromised;
mod devices;
mod hung_worker;

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use peername_sys::process::pidfd::descendants;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use crate::harness::addr::{LISTEN_V4, LISTEN_V6, fresh_client_like, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, Process, Scratch, python, wait_until};
use crate::harness::peername::BINARY;
use crate::harness::rig::exec::{
    MODES, ProgramRig, ServerRig, exec_args, header_waiter_pid, mapped_ipv6, v1, v2,
};
use crate::harness::rig::exec_notify::cpu_ticks;

/// The helper has no Unix socket with a name: other users, and containers that share the network, could connect to it.
#[test]
fn header_waiter_has_no_name_on_the_host() {
    let served = ServerRig::new("--accept=level --brief", &[]);
    assert_two_pieces_served(&served);
    let named = served.lab.server.run("cat", &["/proc/net/unix"]);
    let sockets: Vec<&str> = named
        .lines()
        .filter(|line| line.contains(" @") || line.contains(" /"))
        .collect();
    assert!(sockets.is_empty(), "{sockets:?}");
}

/// The header waiter keeps some descriptors free for itself, so it still takes requests, and loses none of the connections that
/// it holds. Connections over the limit are refused.
#[test]
fn slow_headers_are_limited_by_descriptors() {
    for mode in MODES {
        let (limited, options) = (["prlimit", "--nofile=64"], ["--header-timeout=60s"]);
        let served =
            ServerRig::with_mode_through(mode, &limited, "--accept=level --brief", &options);
        let clients: Vec<_> = (0..100).map(|_| fresh_client_v4()).collect();
        let open = |&client: &SocketAddr| {
            let conn = Conn::try_connect(&served.lab.balancer, LISTEN_V4)?;
            conn.send_if_open(&v2(client)[..20])
                .then_some((conn, client))
        };
        let mut kept: Vec<_> = clients.iter().filter_map(open).collect();
        wait_until("the connections over the limit are closed", || {
            kept.retain(|(conn, _)| conn.is_open_after(Duration::from_millis(1)));
            kept.len() <= MAX_SLOW_HEADERS
        });
        assert_eq!(kept.len(), MAX_SLOW_HEADERS, "{mode}");
        for (conn, client) in &kept {
            conn.send(&[&v2(*client)[20..], b"hi"].concat());
        }
        for (conn, client) in &kept {
            served.assert_sees(conn, *client);
        }
    }
}

/// Wakeup connections to listeners at different addresses could have the same source port. But when the first of them is
/// closed, the other would look like a client where headers are optional. So with a single port, the second listener is woken
/// after the first.
#[test]
fn two_wakeup_connections_never_share_a_port() {
    for mode in MODES {
        let served = ProgramRig::with_mode(mode, &["--header=optional"], TWO_LISTENERS);
        let host = &served.lab.server;
        host.sysctl("net.ipv4.ip_local_port_range", "40054 40054");
        let server = descendants(served.process.pid());
        let server = Pid::from_raw(server[0].cast_signed()).expect("a server");
        let listeners = [LISTEN_V4, SocketAddr::new(LISTEN_V6.ip(), 8444)];
        let open =
            |to: SocketAddr, bytes: &[u8]| Conn::connect_and_send(&served.lab.balancer, to, bytes);
        let wait_accepted = |client: SocketAddr| {
            served.process.wait_printed(&format!("accepted {client}"));
        };
        let slow = listeners.map(|to| {
            let client = fresh_client_like(to);
            (open(to, &v2(client)[..20]), client)
        });
        for to in listeners {
            let client = fresh_client_like(to);
            let _conn = open(to, &v2(client));
            wait_accepted(client);
        }
        // The server is stopped, so that it does not accept the first wakeup connection before the second header is complete.
        kill_process(server, Signal::STOP).expect("kill");
        for (conn, client) in &slow {
            conn.send(&v2(*client)[20..]);
        }
        // The other listener has no wakeup connection yet, because there is no port for it.
        wait_until("a wakeup connection", || {
            let filter = "sport = :40054";
            let wakeups = host.run("ss", &["-Htn", "state", "established", filter]);
            !wakeups.is_empty()
        });
        kill_process(server, Signal::CONT).expect("kill");
        slow.iter().for_each(|(_, client)| wait_accepted(*client));
        let log = served.process.log();
        let accepted = log.lines().filter(|line| line.starts_with("accepted "));
        assert_eq!(accepted.count(), 4, "{mode}: {log}");
    }
}

/// Another program has the server's port at loopback, and gets no wake-up connection of the server, which listens at all
/// addresses. Then another one listens at the address that a client has reached: it gets them all, and the log says so.
#[test]
fn another_program_at_the_port_is_not_woken() {
    for mode in MODES {
        let program = ["/usr/bin/python3", "-uc", SHARED_PORT, "0.0.0.0"];
        let served = ProgramRig::with_mode(mode, &[], &program);
        let start_other = |ip| {
            let args = ["-uc", SHARED_PORT, ip];
            let other = Process::start(&served.lab.server, "/usr/bin/python3", &args);
            other.wait_printed("listening");
            other
        };
        let begin = || {
            let client = fresh_client_v4();
            let half = &v2(client)[..20];
            let conn = Conn::connect_and_send(&served.lab.balancer, LISTEN_V4, half);
            conn.assert_stays_open(Duration::from_millis(50));
            (conn, client)
        };
        let at_loopback = start_other("127.0.0.1");
        let (slow, client) = begin();
        slow.send(&v2(client)[20..]);
        served.process.wait_printed(&format!("accepted {client}"));
        assert_eq!(at_loopback.log(), "listening", "{mode}");

        let (slow, client) = begin();
        let same_address = start_other("10.81.0.1");
        slow.send(&v2(client)[20..]);
        served
            .process
            .wait_logged("takes no connection of this host");
        drop(same_address);
        served.process.wait_printed(&format!("accepted {client}"));
    }
}

/// An IPv6 socket that is bound to ::ffff:0.0.0.0 listens at all addresses of IPv4.
#[test]
fn listener_at_all_mapped_addresses_serves_slow_headers() {
    for mode in MODES {
        let program = ["/usr/bin/python3", "-uc", SHARED_PORT, "::ffff:0.0.0.0"];
        let served = ProgramRig::with_mode(mode, &[], &program);
        let client = fresh_client_v4();
        let half = &v2(client)[..20];
        let slow = Conn::connect_and_send(&served.lab.balancer, LISTEN_V4, half);
        slow.assert_stays_open(Duration::from_millis(50));
        slow.send(&v2(client)[20..]);
        let shown = mapped_ipv6(client);
        served.process.wait_printed(&format!("accepted {shown}"));
    }
}

/// The host loses the address that a client has reached, while its connection waits. The listener is woken at loopback: a
/// wake-up to that address would leave the host, and get no answer. Sockets may have foreign addresses here, as on hosts with
/// keepalived.
#[test]
fn listener_at_all_addresses_is_woken_after_the_loss_of_one() {
    for mode in MODES {
        let options = ["--header=optional", "--header-timeout=3s"];
        let program = ["/usr/bin/python3", "-uc", SHARED_PORT, "::"];
        let served = ProgramRig::with_mode(mode, &options, &program);
        let silent = connect_and_lose_address(&served.lab);
        let client = silent.local_addr();
        served.process.wait_printed(&format!("accepted {client}"));
    }
}

/// The same for a listener at the lost address alone: no wake-up leaves the host, and the client is refused.
#[test]
fn listener_at_a_lost_address_is_not_woken_at_another_host() {
    let options = ["-v", "--header=optional", "--header-timeout=3s"];
    let program = ["/usr/bin/python3", "-uc", SHARED_PORT, "fd81::1"];
    let lab = Lab::without_routes();
    let args = exec_args(&options, &program);
    let process = Process::start_in_pid_namespace(&lab.server, BINARY, &args);
    let process = process.wait_listening(&[LISTEN_V6]);
    let _silent = connect_and_lose_address(&lab);
    process.wait_logged(
        "can't connect to the server at [fd81::1]:8443, so clients are refused: bind(2), for a wake-up connection",
    );
}

/// Returns a silent connection, to an address that the server has lost meanwhile.
fn connect_and_lose_address(lab: &Lab) -> Conn {
    for family in ["ipv4", "ipv6"] {
        let sysctl = format!("net.{family}.ip_nonlocal_bind");
        lab.server.sysctl(&sysctl, "1");
    }
    let silent = Conn::connect(&lab.balancer, LISTEN_V6);
    // The kernel defers silent connections for a second (TCP_DEFER_ACCEPT).
    silent.assert_stays_open(Duration::from_millis(1500));
    let lose = "address del fd81::1/64 dev eth0\nroute add fd81::/64 dev eth0";
    lab.server.ip6(lose);
    silent
}

/// The header waiter has a descriptor for each listener of the program, and closes those of closed listeners.
#[test]
fn closed_listeners_occupy_no_descriptors() {
    for mode in MODES {
        let program = ProgramRig::with_mode(mode, &["--ports=8443,9000-9499"], SHORT_LISTENERS);
        let waiter = header_waiter_pid(&program.process);
        program.process.wait_printed("done");
        let count = fs::read_dir(format!("/proc/{}/fd", waiter.as_raw_nonzero()))
            .expect("/proc")
            .count();
        assert!(count < 150, "{mode}: {count} descriptors");
    }
}

/// The program has more listeners than the header waiter has descriptors to watch. It keeps watching those at which connections
/// wait.
#[test]
fn slow_header_is_served_beside_many_listeners() {
    let scratch = Scratch::new();
    let script = scratch.write("many_listeners.py", MANY_LISTENERS);
    for mode in MODES {
        let (limited, server_args) = (["prlimit", "--nofile=192"], format!("-u {script}"));
        let served = ServerRig::start(mode, &limited, "/usr/bin/python3", &server_args, &[]);
        let open = |port: u16| {
            let client = fresh_client_v4();
            let listener = SocketAddr::new(LISTEN_V4.ip(), port);
            let half = &v2(client)[..20];
            let conn = Conn::connect_and_send(&served.lab.balancer, listener, half);
            conn.assert_stays_open(Duration::from_millis(20));
            (conn, client)
        };
        let assert_served = |(conn, client): (Conn, SocketAddr)| {
            conn.send(&v2(client)[20..]);
            assert_eq!(conn.recv_text_to_end(), client.to_string());
        };
        let first = open(9000);
        (9001..9040).for_each(|port| assert_served(open(port)));
        assert_served(first);
    }
}

/// Without a descriptor for a request, the connection is refused, with the reason; once there is one, requests are served.
#[test]
fn header_waiter_without_a_descriptor_does_not_spin() {
    let served = ServerRig::new("--accept=level --brief", &[]);
    let waiter = header_waiter_pid(&served.process);
    assert_two_pieces_served(&served);
    // The header waiter has raised its limit to the hard limit, which this process has, too.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let none_free = Rlimit {
        current: Some(next_fd(waiter)),
        maximum,
    };
    let previous_limit = prlimit(Some(waiter), Resource::Nofile, none_free).expect("prlimit");
    let client = fresh_client_v4();
    let slow = served.connect_and_send(&v2(client)[..20]);
    slow.wait_reset();
    let before = cpu_ticks(waiter);
    std::thread::sleep(Duration::from_secs(1));
    let took = cpu_ticks(waiter) - before;
    assert!(took < SPIN_TICKS, "{took} ticks in a second");
    prlimit(Some(waiter), Resource::Nofile, previous_limit).expect("prlimit");
    assert_two_pieces_served(&served);
    served.process.wait_logged("no descriptor for the request");
}

/// The header waiter is stopped until the deadline has passed, as with the whole container. More headers have come meanwhile
/// than one wait of its event loop reports. It reads all of them before it refuses their connections as late, or passes them on
/// as silent ones.
#[test]
fn headers_that_came_during_a_stop_are_not_late() {
    for mode in MODES {
        let options = ["--header=optional", "--header-timeout=3s"];
        let served = ServerRig::with_mode(mode, "--accept=level --brief", &options);
        let waiter = header_waiter_pid(&served.process);
        let slow: Vec<_> = (0..150)
            .map(|number| {
                let client = fresh_client_v4();
                let begun = if number % 2 == 0 { 0 } else { 20 };
                let conn = served.connect_and_send(&v2(client)[..begun]);
                (conn, client, begun)
            })
            .collect();
        // The kernel defers silent connections for a second (TCP_DEFER_ACCEPT).
        std::thread::sleep(Duration::from_millis(1500));
        kill_process(waiter, Signal::STOP).expect("kill");
        for (conn, client, begun) in &slow {
            conn.send(&[&v2(*client)[*begun..], b"hi"].concat());
        }
        std::thread::sleep(Duration::from_secs(3));
        kill_process(waiter, Signal::CONT).expect("kill");
        for (conn, client, _) in &slow {
            served.assert_sees(conn, *client);
        }
    }
}

/// Reads stop at the mark of urgent data, so the header does not become complete, however many bytes are behind the mark.
#[test]
fn urgent_byte_in_a_header_does_not_make_the_header_waiter_spin() {
    for mode in MODES {
        let served = ServerRig::with_mode(mode, "--accept=level --brief", &[]);
        let waiter = header_waiter_pid(&served.process);
        assert_two_pieces_served(&served);
        let header = v1(fresh_client_v4());
        let conn = served.connect_and_send(&header[..16]);
        conn.send_urgent(header[16]);
        conn.send(&header[17..]);
        let before = cpu_ticks(waiter);
        conn.assert_stays_open(Duration::from_secs(1));
        let took = cpu_ticks(waiter) - before;
        assert!(took < SPIN_TICKS, "{mode}: {took} ticks in a second");
        assert_two_pieces_served(&served);
    }
}

#[track_caller]
fn assert_two_pieces_served(served: &ServerRig) {
    let client = fresh_client_v4();
    let conn: Conn = served.connect_and_send(&v2(client)[..20]);
    conn.assert_stays_open(Duration::from_millis(50));
    conn.send(&[&v2(client)[20..], b"hi"].concat());
    served.assert_sees(&conn, client);
}

/// The number that the process's next descriptor would have.
fn next_fd(pid: Pid) -> u64 {
    let is_free = |number: &u64| {
        let path = format!("/proc/{}/fd/{number}", pid.as_raw_nonzero());
        fs::read_link(path).is_err()
    };
    (0..).find(is_free).expect("a free number")
}

/// Accepts from one listener after the other, with time between.
const TWO_LISTENERS: &[&str] = &python(include_str!("header_waiter/two_listeners.py"));

/// Listens at one address, with SO_REUSEPORT, and prints the clients.
const SHARED_PORT: &str = include_str!("header_waiter/shared_port.py");

/// Listens for a moment at each of many ports.
const SHORT_LISTENERS: &[&str] = &python(include_str!("header_waiter/short_listeners.py"));

/// Listens at 41 ports, and tells each client its address.
const MANY_LISTENERS: &str = include_str!("header_waiter/many_listeners.py");

/// CPU time in a second, in hundredths. A loop that spins takes a hundred, or what a busy machine leaves to it.
const SPIN_TICKS: u64 = 10;
/// A third of the 64 descriptors that the test leaves to the header waiter.
const MAX_SLOW_HEADERS: usize = 21;

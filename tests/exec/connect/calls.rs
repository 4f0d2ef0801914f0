//! `client.c`: whichever calls it makes, the header comes first, comes once, and the calls return what they
//! do without the library.

use std::thread;
use std::time::Duration;

use crate::harness::addr::{LISTEN_V4, LISTEN_V6, fresh_client_v4, fresh_client_v6, v4};
use crate::harness::backend::Backend;
use crate::harness::conn::{Conn, End};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::{Lab, Scratch, assert_contains, assert_fails, lossy_text};
use crate::harness::rig::exec::{Libc, mapped_ipv6};
use crate::harness::rig::exec_connect::{
    compiled_client, connect_stdout, header_and_hello, run_connect, run_without_connect,
};

const LIBCS: [Libc; 2] = [Libc::Glibc, Libc::Musl];

/// Runs `client.c` in this mode by `run`. Asserts that it makes exactly `connections` connections, and that each sends the
/// `expected` bytes and ends. Returns what the client printed.
#[track_caller]
fn run_and_serve(
    backend: &Backend,
    libc: Libc,
    mode: &str,
    (connections, expected): (usize, &[u8]),
    run: impl Fn(&[&str]) -> String + Sync,
) -> String {
    let to = backend.local_addr();
    let (program, ip, port) = (
        compiled_client(libc),
        to.ip().to_string(),
        to.port().to_string(),
    );
    thread::scope(|scope| {
        let run = scope.spawn(|| run(&[&program, mode, &ip, &port]));
        for _ in 0..connections {
            let conn = backend.accept();
            let (received, end) = conn.recv_to_end();
            assert_eq!(
                (lossy_text(&received), end),
                (lossy_text(expected), End::Fin),
                "{mode}"
            );
        }
        let printed = run.join().expect("the client");
        backend.assert_no_connection();
        printed
    })
}

/// The header is the first data of each connection, the calls return what they do without the library, and a
/// non-blocking socket stays non-blocking.
#[test]
fn every_call_that_connects_sends_the_header_first() {
    let lab = Lab::without_routes();
    let backend = Backend::listen(&lab.server, LISTEN_V4);
    for libc in LIBCS {
        for (mode, connections) in [
            ("block", 1),
            ("poll", 1),
            ("stdio", 1),
            ("sendto", 2),
            ("sendmsg", 2),
            ("sendmmsg", 2),
            ("threads", 32),
        ] {
            let source = fresh_client_v4();
            let run_with =
                |program: &[&str]| connect_stdout(&lab.balancer, source, &[], program, "");
            let run_without = |program: &[&str]| run_without_connect(&lab.balancer, program);
            let header = header_and_hello(source, LISTEN_V4);
            let with = run_and_serve(&backend, libc, mode, (connections, &header), run_with);
            let without = run_and_serve(&backend, libc, mode, (connections, b"hello"), run_without);
            assert_eq!(with, without, "{mode} {libc:?}");
        }
    }
}

/// The client never writes and waits for the server to speak. The server waits for the header, which has to come first.
#[test]
fn client_that_only_reads_sends_its_header() {
    let lab = Lab::without_routes();
    let backend = Backend::listen(&lab.server, LISTEN_V4);
    for libc in LIBCS {
        let source = fresh_client_v4();
        let header = header_bytes::v2(source, LISTEN_V4, &[]);
        let program = compiled_client(libc);
        let words = [&program, "read_first", "10.81.0.1", "8443"];
        let printed = thread::scope(|scope| {
            let client = scope.spawn(|| connect_stdout(&lab.balancer, source, &[], &words, ""));
            let conn = backend.accept();
            assert_eq!(conn.recv(header.len()), header);
            conn.send(b"220 hello\n");
            conn.shutdown_write();
            assert_eq!(conn.recv_to_end(), (Vec::new(), End::Fin));
            client.join().expect("the client")
        });
        assert_eq!(printed, "read done\n20 hello\n");
    }
}

/// The client connects, disconnects and reconnects one descriptor. Its second connection begins with a header, too.
#[test]
fn reconnected_descriptor_sends_a_header_again() {
    let lab = Lab::without_routes();
    let backend = Backend::listen(&lab.server, LISTEN_V4);
    for libc in LIBCS {
        let (source, program) = (fresh_client_v4(), compiled_client(libc));
        let words = [&program, "again", "10.81.0.1", "8443"];
        let printed = thread::scope(|scope| {
            let client = scope.spawn(|| connect_stdout(&lab.balancer, source, &[], &words, ""));
            let first = backend.accept();
            let second = backend.accept();
            assert_eq!(
                second.recv_text_to_end(),
                lossy_text(&header_and_hello(source, LISTEN_V4))
            );
            drop((first, second));
            client.join().expect("the client")
        });
        let calls = "connect done\nconnect EISCONN\nundo done\nconnect done\n";
        assert_eq!(printed, calls);
    }
}

/// Headers of both versions are sent for all pairs of families. An IPv4 address beside an IPv6 one is mapped.
#[test]
fn headers_of_every_version_and_family_are_sent() {
    let lab = Lab::without_routes();
    let (four, six) = (v4([192, 0, 2, 1], 4711), fresh_client_v6());
    let six_port = six.port();
    let lines = [
        (
            four,
            LISTEN_V4,
            "TCP4 192.0.2.1 10.81.0.1 4711 8443".to_owned(),
        ),
        (
            six,
            LISTEN_V6,
            format!("TCP6 2001:db8:7::7 fd81::1 {six_port} 8443"),
        ),
        (
            four,
            LISTEN_V6,
            "TCP6 ::ffff:c000:201 fd81::1 4711 8443".to_owned(),
        ),
        (
            six,
            LISTEN_V4,
            format!("TCP6 2001:db8:7::7 ::ffff:a51:1 {six_port} 8443"),
        ),
    ];
    let backends = [LISTEN_V4, LISTEN_V6].map(|to| Backend::listen(&lab.server, to));
    for (source, to, line) in lines {
        let backend = &backends[usize::from(to.is_ipv6())];
        let binary = if source.is_ipv4() == to.is_ipv4() {
            header_and_hello(source, to)
        } else {
            header_and_hello(mapped_ipv6(source), mapped_ipv6(to))
        };
        let line = format!("PROXY {line}\r\nhello").into_bytes();
        for (version, expected) in [("--proxy-version=1", line), ("--proxy-version=2", binary)] {
            let run =
                |program: &[&str]| connect_stdout(&lab.balancer, source, &[version], program, "");
            run_and_serve(backend, Libc::Glibc, "poll", (1, &expected), run);
        }
    }
}

/// connect(2) fails as it does without the library.
#[test]
fn errors_are_the_kernels() {
    let lab = Lab::without_routes();
    lab.server.nft(DROP);
    for libc in LIBCS {
        let program = compiled_client(libc);
        for (mode, to, port, expected) in [
            ("refused", "10.81.0.1", "1", "SO_ERROR ECONNREFUSED"),
            ("refused", "fd81::1", "1", "SO_ERROR ECONNREFUSED"),
            ("refused", "192.0.2.99", "1", "connect ENETUNREACH"),
            ("never", "10.81.0.1", "9", "signal EINTR"),
            ("wrong", "10.81.0.1", "1", "undo done"),
        ] {
            let words = [&program, mode, to, port];
            let with = connect_stdout(&lab.balancer, fresh_client_v4(), &[], &words, "");
            assert_eq!(
                with,
                run_without_connect(&lab.balancer, &words),
                "{words:?}"
            );
            assert!(with.contains(expected), "{with}");
        }
    }
}

/// UDP and Unix sockets, and TCP connections to ports that are not selected, have no header.
#[test]
fn other_sockets_and_ports_are_not_affected() {
    let lab = Lab::without_routes();
    let scratch = Scratch::new();
    let receiver = DatagramSocket::bind(&lab.server, LISTEN_V4);
    let path = scratch.path_text("sock");
    let words = [
        &compiled_client(Libc::Glibc),
        "others",
        "10.81.0.1",
        "8443",
        &path,
    ];
    let printed = connect_stdout(&lab.balancer, fresh_client_v4(), &[], &words, "");
    assert_eq!(printed, "udp done\nunix done\nhello\n");
    assert_eq!(receiver.recv().0, b"hello");
    let source = fresh_client_v4();
    let header = header_and_hello(source, LISTEN_V4);
    let backend = Backend::listen(&lab.server, LISTEN_V4);
    for (ports, expected) in [
        ("--ports=1-8442,8444", &b"hello"[..]),
        ("--ports=80,8440-8450", &header),
    ] {
        for mode in ["block", "poll"] {
            let run =
                |program: &[&str]| connect_stdout(&lab.balancer, source, &[ports], program, "");
            run_and_serve(&backend, Libc::Glibc, mode, (1, expected), run);
        }
    }
}

/// Where a network drops SYNs with data, the kernel sends the next SYN without, and the header is still first.
#[test]
fn header_comes_first_where_syn_data_is_dropped() {
    let lab = Lab::without_routes();
    lab.server.nft(NO_DATA_IN_SYN);
    let backend = Backend::listen(&lab.server, LISTEN_V4);
    let source = fresh_client_v4();
    let run = |program: &[&str]| connect_stdout(&lab.balancer, source, &[], program, "");
    let expected = header_and_hello(source, LISTEN_V4);
    run_and_serve(&backend, Libc::Glibc, "poll", (1, &expected), run);
    assert_contains(
        &lab.server.run("nft", &["list", "table", "t"]),
        &["counter packets 1 "],
    );
}

/// The accept backlog is full: the kernel repeats the SYN until there is space.
#[test]
fn full_backlog_delays_the_connection_only() {
    let lab = Lab::without_routes();
    let backend = Backend::listen_with_backlog(&lab.server, LISTEN_V4, 1);
    let waiting: Vec<_> = (0..2)
        .map(|_| Conn::connect_and_send(&lab.balancer, LISTEN_V4, b"first"))
        .collect();
    let (source, program) = (fresh_client_v4(), compiled_client(Libc::Glibc));
    let words = [&program, "poll", "10.81.0.1", "8443"];
    thread::scope(|scope| {
        let client = scope.spawn(|| connect_stdout(&lab.balancer, source, &[], &words, ""));
        thread::sleep(Duration::from_millis(300));
        assert!(!client.is_finished());
        for _ in &waiting {
            assert_eq!(backend.accept().recv(5), b"first");
        }
        let (received, _) = backend.accept().recv_to_end();
        assert_eq!(
            lossy_text(&received),
            lossy_text(&header_and_hello(source, LISTEN_V4))
        );
        client.join().expect("the client");
    });
}

/// A header that does not fit into one segment is not sent in two: no connection is made.
#[test]
fn half_a_header_is_never_sent() {
    let lab = Lab::without_routes();
    let script = r"import socket
s = socket.socket()
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 88)
s.setblocking(False)
try:
    s.connect(('10.81.0.1', 8443))
except BlockingIOError: print('under way')
except OSError as error: print(error.strerror)";
    let backend = Backend::listen(&lab.server, LISTEN_V4);
    let python = ["/usr/bin/python3", "-c", script];
    let long = "[2001:db8:1111:2222:3333:4444:5555:6666]:40000".parse();
    let printed = connect_stdout(
        &lab.balancer,
        long.expect("an endpoint"),
        &["--proxy-version=1"],
        &python,
        "",
    );
    assert_eq!(printed, "Message too long\n");
    if let Some(conn) = backend.accept_within(Duration::from_millis(200)) {
        assert_ne!(conn.recv_to_end().1, End::Fin);
    }
}

/// A `struct sockaddr_in6` that ends before or within its scope is a valid address without one, and the connection has its
/// header.
#[test]
fn short_ipv6_address_gets_a_header() {
    let lab = Lab::without_routes();
    let script = r"import ctypes, socket, struct, sys
s = socket.socket(socket.AF_INET6)
address = struct.pack('=H', s.family) + struct.pack('!HI', 8443, 0) + socket.inet_pton(s.family, 'fd81::1')
size = int(sys.argv[1])
print(ctypes.CDLL(None).connect(s.fileno(), address.ljust(size, b'\1' if size < 28 else b'\0'), size))
s.sendall(b'hello')";
    let backend = Backend::listen(&lab.server, LISTEN_V6);
    for size in ["24", "27", "28"] {
        let source = fresh_client_v6();
        let words = ["/usr/bin/python3", "-c", script, size];
        let printed = thread::scope(|scope| {
            let client = scope.spawn(|| connect_stdout(&lab.balancer, source, &[], &words, ""));
            let (received, _) = backend.accept().recv_to_end();
            let expected = header_and_hello(source, LISTEN_V6);
            assert_eq!(lossy_text(&received), lossy_text(&expected), "{size}");
            client.join().expect("the client")
        });
        assert_eq!(printed, "0\n");
    }
}

/// Where the kernel may not send data with the SYN, no header could come first. So no connection is made.
#[test]
fn without_fast_open_no_connection_is_made() {
    let lab = Lab::without_routes();
    let backend = Backend::listen(&lab.server, LISTEN_V4);
    let program = compiled_client(Libc::Glibc);
    lab.balancer.sysctl("net.ipv4.tcp_fastopen", "0");
    let output = run_connect(&lab.balancer, fresh_client_v4(), &[], &[&program], "");
    assert_fails(&output, 125, &["sysctl -w net.ipv4.tcp_fastopen=1"]);
    backend.assert_no_connection();
}

/// TCP to port 9 gets no answer.
const DROP: &str = "table inet t {
    chain c { type filter hook input priority 0; tcp dport 9 drop; }
}";

/// 60 bytes are an IPv4 SYN with all its options and no data.
const NO_DATA_IN_SYN: &str = "table ip t {
    chain c {
        type filter hook input priority 0;
        tcp flags & (syn | ack) == syn ip length > 60 counter drop
    }
}";

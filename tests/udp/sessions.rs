//! Sessions: which events a session outlives, how it ends, and that sessions are not confused with each other.

mod listing;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4, v4};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::failing::no_epoll_watches_from;
use crate::harness::lab::{WAIT_LIMIT, assert_contains, failing_calls, wait_for};
use crate::harness::peername::words;
use crate::harness::rig::proxy::front_of;
use crate::harness::rig::udp::{UdpRig, datagram_header_for};

/// While the backend is down its host answers by ICMP, which ends no session. With go-mmproxy, such a client gets no answer any
/// more.
#[test]
fn session_outlives_a_backend_restart() {
    let mut rig = UdpRig::new(&[]);
    let clients: Vec<SocketAddr> = (0..20).map(|_| fresh_client_v4()).collect();
    clients.iter().for_each(|client| rig.round_trip(*client));
    rig.backend_v4 = DatagramSocket::bind(&rig.lab.server, v4([127, 0, 0, 9], 9000));
    for client in clients.iter().cycle().take(60) {
        rig.send_from_balancer(&[&datagram_header_for(*client), b"hello?"]);
    }
    thread::sleep(Duration::from_millis(100));
    rig.backend_v4 = DatagramSocket::bind(&rig.lab.server, TARGET_V4);
    clients.iter().for_each(|client| rig.round_trip(*client));
    assert!(rig.stop_and_count_drops().contains_key("unreachable"));
}

/// An ICMP error is reported by the next send, which then sends nothing, so the proxy repeats it.
#[test]
fn pending_icmp_error_loses_no_datagram() {
    let mut rig = UdpRig::new(&["--workers=1"]);
    let client = fresh_client_v4();
    rig.round_trip(client);
    rig.backend_v4 = DatagramSocket::bind(&rig.lab.server, v4([127, 0, 0, 9], 9000));
    // When it goes on, the suspended proxy has several batches of datagrams to send, with ICMP errors in between.
    rig.proxy.suspend();
    for size in 1..=80 {
        rig.send_from_balancer(&[&datagram_header_for(client), &vec![0; size]]);
    }
    rig.proxy.signal(Signal::CONT);
    assert_eq!(rig.stop()["datagrams_to_upstream"], 81);
}

#[test]
fn empty_datagrams_are_relayed() {
    let rig = UdpRig::new(&[]);
    let client = fresh_client_v4();
    rig.assert_delivered(&datagram_header_for(client), b"", client);
    rig.assert_reply(client, b"");
    rig.round_trip(client);
}

/// UDP over IPv4 carries 65,507 bytes, of which a request needs some for its header.
#[test]
fn largest_datagrams_are_relayed() {
    let rig = UdpRig::new(&[]);
    let client = fresh_client_v4();
    let header = datagram_header_for(client);
    let request = vec![7; 65_507 - header.len()];
    rig.assert_delivered(&header, &request, client);
    let answer = vec![8; 65_507];
    rig.assert_reply(client, &answer);
}

/// A reply that an SPP header makes too large is dropped, and logged.
#[test]
fn reply_too_large_for_its_header_is_dropped() {
    let mut rig = UdpRig::new(&["--udp-header=spp"]);
    let client = fresh_client_v4();
    let header = header_bytes::spp(client, front_of(client));
    rig.assert_delivered(&header, b"?", client);
    rig.backend_v4.send(client, &[&[1; 65_507]]);
    let largest = vec![2; 65_507 - header.len()];
    rig.backend_v4.send(client, &[&largest]);
    rig.balancer
        .expect_datagram(&[header, largest].concat(), LISTEN_V4);
    assert_eq!(rig.stop_and_count_drops().get("too_large"), Some(&1));
}

/// A balancer that was restarted, or is behind NAT, comes from another port. The session stays the same, and replies go to the
/// port that sent last.
#[test]
fn replies_follow_a_balancer_to_another_port() {
    let mut rig = UdpRig::new(&[]);
    let client = fresh_client_v4();
    rig.round_trip(client);
    for _ in 0..5 {
        rig.balancer = rig.add_balancer_socket();
        rig.round_trip(client);
    }
    assert_eq!(rig.stop()["udp_sessions"], 1);
}

/// Many clients through one socket of the balancer, as dnsdist sends them.
#[test]
fn one_balancer_socket_carries_many_clients() {
    let rig = UdpRig::new(&[]);
    let clients: Vec<SocketAddr> = (0..50).map(|_| fresh_client_v4()).collect();
    for (number, client) in clients.iter().enumerate() {
        rig.send_from_balancer(&[&datagram_header_for(*client), &[number as u8]]);
    }
    for _ in &clients {
        let (bytes, from) = rig.backend_v4.recv();
        assert_eq!(from, clients[usize::from(bytes[0])]);
        rig.backend_v4.send(from, &[&bytes]);
    }
    let mut answers: Vec<u8> = clients.iter().map(|_| rig.balancer.recv().0[0]).collect();
    answers.sort_unstable();
    assert_eq!(answers, (0..50).collect::<Vec<u8>>());
}

/// LOCAL means the balancer itself: nothing is spoofed, and each port has a session of its own.
#[test]
fn local_header_makes_the_balancer_the_client() {
    let rig = UdpRig::new(&[]);
    let second = rig.add_balancer_socket();
    let block = header_bytes::addresses(fresh_client_v4(), front_of(fresh_client_v4()));
    for header in [
        header_bytes::raw(header_bytes::LOCAL, header_bytes::UNSPEC, &[]),
        header_bytes::raw(header_bytes::LOCAL, header_bytes::DGRAM_V4, &block),
    ] {
        rig.send_from_balancer(&[&header, b"1"]);
        let (_, first) = rig.backend_v4.recv();
        assert!(first.ip().is_loopback(), "{first}");
        second.send(LISTEN_V4, &[&header, b"2"]);
        let (_, other) = rig.backend_v4.recv();
        assert_ne!(first, other);
        rig.backend_v4.send(other, &[b"two"]);
        rig.assert_reply(first, b"one");
        second.expect_datagram(b"two", LISTEN_V4);
    }
}

/// Without a client's port in the header, each address of the server that the balancer sends to has a session of its own, so
/// that each reply comes from the address that was asked.
#[test]
fn local_headers_are_answered_from_the_address_that_was_asked() {
    let rig = UdpRig::new(&["--listen=0.0.0.0:8444"]);
    rig.lab.server.add_addresses("eth0", &["10.81.0.77/24"]);
    let header = header_bytes::raw(header_bytes::LOCAL, header_bytes::UNSPEC, &[]);
    let destinations = [[10, 81, 0, 1], [10, 81, 0, 77]].map(|ip| v4(ip, 8444));
    let sessions = destinations.map(|to| {
        rig.balancer.send(to, &[&header, b"ask"]);
        rig.backend_v4.recv().1
    });
    for (session, from) in sessions.into_iter().zip(destinations) {
        rig.backend_v4.send(session, &[b"answer"]);
        rig.balancer.expect_datagram(b"answer", from);
    }
}

/// Sessions expire when idle, with one line in the log.
#[test]
fn idle_session_expires() {
    let rig = UdpRig::new(&["--close-after=1s"]);
    let (answered, unanswered) = (fresh_client_v4(), fresh_client_v4());
    rig.round_trip(answered);
    rig.assert_delivered(&datagram_header_for(unanswered), b"hello?", unanswered);
    let start = Instant::now();
    let wait_ended = |client: SocketAddr, outcome: &str| {
        let line = rig
            .proxy
            .wait_logged_parts(&[&format!("\"client\":\"{client}\""), "ended"]);
        assert_contains(&line, &[&format!("\"outcome\":\"{outcome}\"")]);
        line
    };
    let line = wait_ended(answered, "idle");
    assert_contains(
        &line,
        &[
            "\"listener\":\"10.81.0.1:8443\"",
            "\"upstream\":\"127.0.0.1:9000\"",
            "\"bytes_to_upstream\":4",
            "\"bytes_to_downstream\":4",
            "\"datagrams_to_upstream\":1",
            "\"datagrams_to_downstream\":1",
        ],
    );
    wait_ended(unanswered, "unanswered");
    assert!(start.elapsed() < Duration::from_secs(4));
    // The session's socket is closed, so another program can have the address and port.
    rig.lab.server.ip("address add 198.51.100.7/32 dev lo");
    wait_for("the port is free", || {
        let bind = || std::net::UdpSocket::bind(answered).ok();
        rig.lab.server.enter(bind).map(drop)
    });
}

/// On SIGTERM replies to earlier requests still get out; the drain does not wait for idle sessions.
#[test]
fn drain_delivers_pending_replies() {
    let mut rig = UdpRig::new(&[]);
    let client = fresh_client_v4();
    rig.assert_delivered(&datagram_header_for(client), b"slow", client);
    rig.proxy.signal(Signal::TERM);
    thread::sleep(Duration::from_millis(300));
    rig.assert_reply(client, b"answer");
    rig.send_from_balancer(&[&datagram_header_for(fresh_client_v4()), b"new"]);
    rig.backend_v4.assert_silent();
    // The drain does not wait for a peer whose datagrams are dropped.
    let (peer, is_over) = (rig.add_balancer_socket(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                peer.send(LISTEN_V4, &[b"no header"]);
                thread::sleep(Duration::from_millis(100));
            }
        });
        let status = rig.proxy.wait_exit(Duration::from_secs(3));
        is_over.store(true, Relaxed);
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
    });
}

/// A backend may take longer for a reply than a drain without traffic lasts.
#[test]
fn drain_keeps_a_pending_session_while_another_one_is_active() {
    let rig = UdpRig::new(&["--workers=1", "--drain=60s"]);
    let (pending, active) = (fresh_client_v4(), fresh_client_v4());
    rig.assert_delivered(&datagram_header_for(pending), b"slow", pending);
    rig.round_trip(active);
    rig.proxy.signal(Signal::TERM);
    rig.proxy.wait_logged("accepting no more");
    for _ in 0..35 {
        rig.round_trip(active);
        thread::sleep(Duration::from_millis(100));
    }
    rig.assert_reply(pending, b"answer");
}

/// The proxy drains its sockets before it expires idle sessions, so datagrams that arrived while the process was suspended
/// are in time.
#[test]
fn suspended_proxy_reads_its_sockets_before_it_exits() {
    let mut rig = UdpRig::new(&["--workers=1"]);
    let client = fresh_client_v4();
    rig.round_trip(client);
    rig.proxy.signal(Signal::TERM);
    rig.proxy.wait_logged("accepting no more");
    rig.proxy.suspend();
    rig.send_from_balancer(&[&datagram_header_for(client), b"late"]);
    rig.backend_v4.send(client, &[b"too"]);
    thread::sleep(Duration::from_secs(2));
    rig.proxy.signal(Signal::CONT);
    rig.backend_v4.expect_datagram(b"late", client);
    rig.balancer.expect_datagram(b"too", LISTEN_V4);
    rig.proxy.wait_success(WAIT_LIMIT);
}

/// A session is not idle if a reply arrived while the process was suspended. The proxy may handle the reply or the expiry
/// first, so this is tried several times.
#[test]
fn pending_reply_keeps_a_session_alive() {
    let rig = UdpRig::new(&["--workers=1", "--close-after=1s"]);
    let client = fresh_client_v4();
    for _ in 0..6 {
        rig.round_trip(client);
        rig.proxy.suspend();
        rig.backend_v4.send(client, &[b"late"]);
        thread::sleep(Duration::from_millis(1500));
        rig.proxy.signal(Signal::CONT);
        rig.balancer.expect_datagram(b"late", LISTEN_V4);
    }
}

/// When `ss --kill` destroys a session's socket, the client gets another session. When it destroys a listener's socket, the
/// proxy exits, to be restarted.
#[test]
fn destroyed_session_is_replaced_and_destroyed_listener_ends_the_proxy() {
    let mut rig = UdpRig::new(&["--workers=1"]);
    let client = fresh_client_v4();
    rig.round_trip(client);
    destroy_sockets(&rig, "dport = :9000");
    wait_destroyed(&rig);
    rig.round_trip(client);
    destroy_sockets(&rig, "sport = :8443");
    let status = rig.proxy.wait_exit(Duration::from_secs(3));
    assert_eq!(status.and_then(|status| status.code()), Some(1));
}

/// The kernel reports the destruction of a socket once, which another call may consume. From then on no event wakes the
/// session, and a client that goes on sending would keep it alive for ever.
#[test]
fn destroyed_socket_is_noticed_by_sending() {
    let mut rig = UdpRig::new(&["--workers=1"]);
    let client = fresh_client_v4();
    rig.round_trip(client);
    rig.proxy.suspend();
    destroy_sockets(&rig, "dport = :9000");
    take_pending_errors(rig.proxy.pid());
    for _ in 0..3 {
        rig.send_from_balancer(&[&datagram_header_for(client), b"lost"]);
    }
    rig.proxy.signal(Signal::CONT);
    wait_destroyed(&rig);
    rig.round_trip(client);
    assert_eq!(rig.stop_and_count_drops().get("socket_destroyed"), Some(&3));
}

/// The warning is about sessions, and says what to raise.
#[test]
fn session_that_epoll_can_not_watch_is_reported() {
    let calls = no_epoll_watches_from(40);
    let failing_calls = failing_calls(&calls);
    let rig = UdpRig::start_through(&failing_calls, &["--workers=1"]);
    for _ in 0..40 {
        rig.send_from_balancer(&[&datagram_header_for(fresh_client_v4()), b"hello?"]);
    }
    rig.proxy.wait_logged_parts(&[
        "UDP sessions ended: unwatched, for example from ",
        "fs.epoll.max_user_watches",
    ]);
}

/// Waits for the log line of a session that ended because its socket was destroyed: a local fault, not a peer's.
#[track_caller]
fn wait_destroyed(rig: &UdpRig) {
    let line = rig.proxy.wait_logged("connection ended");
    assert_contains(
        &line,
        &[
            r#""outcome":"socket_destroyed""#,
            r#""fault":"local""#,
            "ss --kill",
        ],
    );
}

/// Reads the error of each socket of a process (SO_ERROR), which clears it.
fn take_pending_errors(pid: u32) {
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = pidfd_open(process.expect("a process id"), PidfdFlags::empty());
    let process = process.expect("pidfd_open");
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors");
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        entry.file_name().to_str()?.parse::<i32>().ok()
    };
    let taken = descriptors
        .filter_map(number)
        .filter_map(|fd| pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).ok())
        .filter_map(|fd| socket2::SockRef::from(&fd).take_error().ok().flatten());
    assert_eq!(taken.count(), 1);
}

/// Destroys UDP sockets of the server's host, of any process.
fn destroy_sockets(rig: &UdpRig, filter: &str) {
    let args = [&["-K", "-u", "-a", "-n"], &words(filter)[..]].concat();
    rig.lab.server.run("ss", &args);
}

//! The relay loses nothing: every byte arrives, and each end sees how the other one closed.
//!
//! Per direction: content and count are equal; FIN comes if and only if the peer sent FIN, after all bytes;
//! RST if and only if the peer reset. HAProxy, nginx and go-mmproxy all turn a backend's RST into FIN, which
//! makes a truncated answer look complete; nginx loses the data after a half-close.

use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4};
use crate::harness::backend::Backend;
use crate::harness::conn::{Conn, End};
use crate::harness::lab::{Lab, Process, assert_within, wait_until};
use crate::harness::pattern::{assert_same, pattern};
use crate::harness::peername::Peername;
use crate::harness::rig::proxy::{ProxyRig, connect_client, header_for};

#[test]
fn half_close_keeps_the_other_direction() {
    for relay in relays() {
        let rig = ProxyRig::new(&[relay]);
        let (down, up) = rig.connect_client(fresh_client_v4());
        assert_half_close(&down, &up);
        let (down, up) = rig.connect_client(fresh_client_v4());
        assert_half_close(&up, &down);
    }
}

/// The header timeout does not apply to the open direction of a half-closed connection.
#[test]
fn half_closed_connections_stay_open() {
    for relay in relays() {
        let rig = ProxyRig::new(&[relay, "--header-timeout=800ms"]);
        let (down, up) = rig.connect_client(fresh_client_v4());
        down.shutdown_write();
        assert_eq!(up.recv_to_end(), (vec![], End::Fin));
        down.assert_stays_open(Duration::from_secs(1));
        up.send(b"still here");
        drop(up);
        assert_eq!(down.recv_to_end(), (b"still here".to_vec(), End::Fin));
    }
}

/// Both ends send at once, more than all buffers hold.
#[test]
fn both_directions_carry_bulk_at_once() {
    for relay in relays() {
        let rig = ProxyRig::new(&[relay]);
        let (down, up) = rig.connect_client(fresh_client_v4());
        let (request, answer) = (pattern(1, 32 << 20), pattern(2, 32 << 20));
        thread::scope(|scope| {
            scope.spawn(|| (down.send(&request), down.shutdown_write()));
            scope.spawn(|| (up.send(&answer), up.shutdown_write()));
            let at_backend = scope.spawn(|| up.recv_to_end());
            let (received, end) = down.recv_to_end();
            assert_eq!(end, End::Fin);
            assert_same(&received, &answer);
            let (received, end) = at_backend.join().expect("the backend's reader");
            assert_eq!(end, End::Fin);
            assert_same(&received, &request);
        });
    }
}

/// The client gets all that the backend has sent, and then RST.
#[test]
fn backend_reset_reaches_the_client_after_its_data() {
    for relay in relays() {
        let rig = ProxyRig::new(&[relay]);
        for pause in [Duration::ZERO, Duration::from_millis(200)] {
            let (down, up) = rig.connect_client(fresh_client_v4());
            let answer = pattern(3, 256 << 10);
            up.send(&answer);
            // A reset discards what its sender has not sent yet; that would be the sender's own loss.
            wait_until("everything is acknowledged", || up.is_all_acknowledged());
            up.reset();
            thread::sleep(pause);
            let (received, end) = down.recv_to_end();
            assert_same(&received, &answer);
            assert_eq!(end, End::Reset, "{relay}");
        }
    }
}

#[test]
fn client_reset_reaches_the_backend() {
    for relay in relays() {
        let rig = ProxyRig::new(&[relay]);
        assert_within(5, Duration::from_millis(100), || {
            let (down, up) = rig.connect_client(fresh_client_v4());
            let start = Instant::now();
            down.reset();
            assert_eq!(up.recv_to_end(), (vec![], End::Reset), "{relay}");
            start.elapsed()
        });
    }
}

/// The receiver resets after the sender has filled all buffers: the sender learns it from its blocked write,
/// and no half of the connection stays behind.
#[test]
fn resets_reach_a_blocked_sender() {
    for relay in relays() {
        let rig = ProxyRig::new(&[relay]);
        rig.proxy.wait_started();
        let idle = rig.proxy.count_fds();
        for is_reversed in [false, true].repeat(12) {
            let (down, up) = rig.connect_client(fresh_client_v4());
            let (sender, receiver) = if is_reversed { (down, up) } else { (up, down) };
            thread::scope(|scope| {
                let noticed = scope.spawn(|| sender.send_until_error());
                // Long enough for all buffers on the path to fill.
                thread::sleep(Duration::from_millis(60));
                receiver.reset();
                let error = noticed.join().expect("the sender");
                assert_eq!(
                    error,
                    ErrorKind::ConnectionReset,
                    "{relay}, is_reversed: {is_reversed}"
                );
            });
        }
        wait_until("the proxy's descriptors are closed", || {
            rig.proxy.count_fds() <= idle + POOLED_FDS_OF_TWO_CONNECTIONS
        });
    }
}

/// When a backend with a thousand connections dies, each client gets a reset, and the proxy leaks no descriptor.
#[test]
fn killed_backend_resets_every_client() {
    peername_sys::process::limits::raise_open_files()
        .expect("descriptors for a thousand connections");
    let killed = |relay| {
        let lab = Lab::new();
        let backend = Process::start(&lab.server, "/usr/bin/python3", &["-uc", NEVER_READS]);
        let backend = backend.wait_listening(&[TARGET_V4]);
        let proxy = Peername::proxy(&lab, &[relay]);
        proxy.wait_started();
        let idle = proxy.count_fds();
        // The backend leaves these bytes unread, so its kernel resets when it dies.
        let open = || {
            let request = [header_for(fresh_client_v4()), b"request".to_vec()].concat();
            Conn::connect_and_send(&lab.balancer, LISTEN_V4, &request)
        };
        let clients: Vec<Conn> = (0..1000).map(|_| open()).collect();
        backend.wait_logged("full");
        let start = Instant::now();
        drop(backend);
        for client in clients {
            assert_eq!(client.recv_to_end(), (vec![], End::Reset), "{relay}");
        }
        let elapsed = start.elapsed();
        wait_until("the proxy's descriptors are closed", || {
            proxy.count_fds() <= idle + POOLED_FDS
        });
        elapsed
    };
    for relay in relays() {
        assert_within(3, Duration::from_secs(1), || killed(relay));
    }
}

/// While the backend refuses, a client's connection is closed at once. Clients are served as soon as the backend listens.
#[test]
fn refusing_backend_closes_clients_until_it_is_back() {
    let lab = Lab::new();
    let proxy = Peername::proxy(&lab, &[]);
    let open = || connect_client(&lab, LISTEN_V4, fresh_client_v4());
    assert_within(5, Duration::from_millis(100), || open().wait_closed().1);
    let backend = Backend::listen(&lab.server, TARGET_V4);
    assert_within(5, Duration::from_millis(100), || {
        let start = Instant::now();
        let down = open();
        backend.accept().send(b"welcome");
        assert_eq!(down.recv(7), b"welcome");
        start.elapsed()
    });
    drop(proxy);
}

/// A backend that does not answer costs a client the connect timeout and no more.
#[test]
fn silent_backend_costs_the_connect_timeout() {
    let mut rig = ProxyRig::new(&["--connect-timeout=500ms"]);
    rig.lab.server.add_filter("input", "tcp dport 9000 drop");
    assert_within(3, Duration::from_millis(600), || {
        let start = Instant::now();
        rig.connect_and_send(&header_for(fresh_client_v4()))
            .wait_closed();
        let elapsed = start.elapsed();
        assert!(
            elapsed >= Duration::from_millis(500),
            "closed after {elapsed:?}"
        );
        elapsed
    });
    rig.lab.server.nft("flush ruleset");
    rig.assert_serves(fresh_client_v4());
}

/// A thousand clients stall at once while the backend sends; then, reversed, the backend stalls while a thousand clients send.
/// Socket buffers are limited to 16 KiB, so the 128 KiB for each reader are several times what the kernel buffers. (8 MiB for
/// each, without that limit, would test the same and take minutes on a small machine.)
#[test]
fn thousand_slow_readers_cost_one_buffer_each() {
    peername_sys::process::limits::raise_open_files()
        .expect("descriptors for a thousand connections");
    for (relay, is_reversed) in relays()
        .into_iter()
        .flat_map(|relay| [(relay, false), (relay, true)])
    {
        let mut rig = ProxyRig::new(&[relay]);
        for buffers in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
            rig.lab.server.sysctl(buffers, "4096 16384 16384");
            rig.lab.balancer.sysctl(buffers, "4096 16384 16384");
        }
        rig.assert_serves(fresh_client_v4());
        let idle = rig.proxy.resident_kib();
        let connect = |_| {
            let client = fresh_client_v4();
            let down = Conn::connect_with_receive_buffer(&rig.lab.balancer, LISTEN_V4, 4 << 10);
            down.send(&header_for(client));
            let up = rig.accept_client(client);
            if is_reversed { (up, down) } else { (down, up) }
        };
        let pairs: Vec<(Conn, Conn)> = (0..1000).map(connect).collect();
        let (readers, writers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        thread::scope(|scope| {
            for (stream, writer) in (0..).zip(writers) {
                let push = move || writer.send(&pattern(stream, BYTES_PER_READER));
                thread::Builder::new()
                    .stack_size(64 << 10)
                    .spawn_scoped(scope, push)
                    .expect("a thread");
            }
            // All readers stall now; a client that reads is served all the same.
            rig.assert_serves(fresh_client_v4());
            let grown = rig.proxy.resident_kib().saturating_sub(idle);
            let limit = 1000 * KIB_PER_STALLED;
            assert!(
                grown < limit,
                "{relay}, is_reversed: {is_reversed}: the proxy grew by {grown} KiB"
            );
            let mut received = vec![Vec::with_capacity(BYTES_PER_READER); readers.len()];
            for _ in 0..BYTES_PER_READER / BYTES_PER_READ {
                for (reader, bytes) in readers.iter().zip(&mut received) {
                    bytes.extend(reader.recv(BYTES_PER_READ));
                }
            }
            for (stream, (reader, bytes)) in (0..).zip(readers.iter().zip(received)) {
                assert_same(&bytes, &pattern(stream, BYTES_PER_READER));
                assert_eq!(reader.recv_to_end(), (vec![], End::Fin));
            }
        });
    }
}

/// One side sends 4 MiB and FIN; only then the other answers with 4 MiB and FIN.
fn assert_half_close(first: &Conn, second: &Conn) {
    let (request, answer) = (pattern(5, 4 << 20), pattern(6, 4 << 20));
    for (from, to, bytes) in [(first, second, request), (second, first, answer)] {
        thread::scope(|scope| {
            scope.spawn(|| (from.send(&bytes), from.shutdown_write()));
            let (received, end) = to.recv_to_end();
            assert_eq!(end, End::Fin);
            assert_same(&received, &bytes);
        });
    }
}

fn relays() -> [&'static str; 3] {
    ["--relay=auto", "--relay=copy", "--relay=splice"]
}

/// Descriptors of pooled pipes, which are not leaked: two ends of each of 32 pipes in each of two workers.
const POOLED_FDS: usize = 2 * 32 * 2;
/// The same where each connection begins while the one before is being closed: two ends of each of two pipes, for two
/// connections in each of two workers.
const POOLED_FDS_OF_TWO_CONNECTIONS: usize = 2 * 2 * 2 * 2;

/// Bytes for each of a thousand slow readers, and how many of them each reads at a time.
const BYTES_PER_READER: usize = 128 << 10;
const BYTES_PER_READ: usize = 8 << 10;
/// The most memory for a stalled connection: the relay's buffer of 64 KiB, and the state of the connection.
const KIB_PER_STALLED: usize = 80;

const NEVER_READS: &str = include_str!("relay/never_reads.py");

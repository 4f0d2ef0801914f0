//! Resource limits: the proxy exerts backpressure or refuses, logs the reason, and recovers. Idle connections cost little.
//!
//! go-mmproxy and mmproxy-rs exit with status 0 when accept(2) fails once, so that no supervisor restarts
//! them.

mod fairness;

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::failing::no_epoll_watches_from;
use crate::harness::lab::{Lab, Scratch, WAIT_LIMIT, failing_calls, wait_for, wait_until};
use crate::harness::pattern::{assert_same, pattern};
use crate::harness::peername::{AS_NOBODY, PROXY_ARGS, Peername, words};
use crate::harness::programs::server::{Redis, Server};
use crate::harness::rig::proxy::{ProxyRig, connect_fresh_client, header_for};

#[test]
fn exhausted_descriptors_pause_accept_until_some_are_free() {
    let lab = Lab::new();
    let _server = Redis::start(&lab.server);
    let mut proxy = Peername::proxy_through(&lab, &["prlimit", "--nofile=64:64"], &[]);
    let ping = || {
        let request = [header_for(fresh_client_v4()), b"PING\r\n".to_vec()].concat();
        Conn::connect_and_send(&lab.balancer, LISTEN_V4, &request)
    };
    let mut resumed = Vec::new();
    for _ in 0..3 {
        let crowd: Vec<Conn> = (0..100).map(|_| ping()).collect();
        let soon = Duration::from_millis(5);
        let count_served = || {
            let served = crowd.iter().filter(|conn| conn.is_answered_after(soon));
            served.count()
        };
        wait_until("ten connections are served", || count_served() >= 10);
        // Time for every connection that can be served, even on a busy machine.
        thread::sleep(Duration::from_millis(200));
        proxy.wait_idle();
        for conn in &crowd {
            // The others wait in the accept backlog, which is better for a client than to be refused.
            assert!(conn.is_answered_after(soon) || conn.is_open_after(soon));
        }
        let served = count_served();
        assert!(served <= 30, "64 descriptors served {served}");
        assert!(proxy.is_alive(), "out of descriptors:\n{}", proxy.log());
        let start = Instant::now();
        drop(crowd);
        assert_eq!(ping().recv(7), b"+PONG\r\n");
        resumed.push(start.elapsed());
        for _ in 0..9 {
            assert_eq!(ping().recv(7), b"+PONG\r\n");
        }
    }
    // 200 ms for the proxy; the rest is for a machine that runs other tests, which may be late once.
    resumed.sort();
    assert!(
        resumed[1] < Duration::from_millis(500),
        "resumed after {resumed:?}"
    );
}

/// The kernel grants this process no more epoll watches. A connection over the limit is refused and counted,
/// as a fault of this host, and no other connection is affected.
#[test]
fn exhausted_epoll_watches_refuse_only_new_connections() {
    const FORWARD: &[&str] = &[
        "forward",
        "--listen=10.81.0.1:8443",
        "--to=127.0.0.1:9000",
        "--proxy-version=none",
        "--workers=1",
        "--log-format=json",
    ];
    // With one of the two limits, a client's connection gets a watch, and the connection to its backend does not.
    for (args, limit) in [
        (PROXY_ARGS, 40),
        (PROXY_ARGS, 41),
        (FORWARD, 40),
        (FORWARD, 41),
    ] {
        let calls = no_epoll_watches_from(limit);
        let failing_calls = failing_calls(&calls);
        let lab = Lab::new();
        let _server = Redis::start(&lab.server);
        let mut proxy = Peername::start_through(&lab.server, &failing_calls, args, &[LISTEN_V4]);
        proxy.wait_started();
        let idle = proxy.count_fds();
        let serve = || {
            let header = if args == PROXY_ARGS {
                header_for(fresh_client_v4())
            } else {
                Vec::new()
            };
            let down = Conn::try_connect(&lab.balancer, LISTEN_V4)?;
            down.send_if_open(&[&header[..], b"PING\r\n"].concat());
            down.is_answered_after(WAIT_LIMIT).then_some(down)
        };
        let served: Vec<_> = std::iter::from_fn(serve).collect();
        assert!((2..20).contains(&served.len()), "{} served", served.len());
        for down in &served {
            down.send(b"PING\r\n");
            assert_eq!(down.recv(14), b"+PONG\r\n+PONG\r\n");
        }
        drop(served);
        wait_until("all connections are closed", || proxy.count_fds() <= idle);
        assert!(serve().is_some());
        let totals = proxy.stop();
        let outcomes = totals["outcomes"].as_str().expect("text");
        let mut counts = outcomes.split(' ');
        assert!(counts.any(|count| count == "local_error=1"), "{totals}");
    }
}

/// One peer that opens connections and sends nothing can't take all slots for pending headers.
#[test]
fn pending_headers_of_one_peer_are_limited() {
    let mut rig = ProxyRig::new(&words(
        "--max-pending-per-peer=10 --max-pending=15 --header-timeout=60s",
    ));
    let mut silent =
        exceed_pending_limit(&rig, (0..10).map(|_| rig.connect_and_send(&[])).collect());
    rig.proxy.wait_outcome("too_many_pending");
    silent.pop();
    rig.proxy.wait_outcome("closed_without_header");
    silent.push(rig.connect_and_send(&[]));
    drop(exceed_pending_limit(&rig, silent));
    wait_for("a pending slot is free", || {
        let down = Conn::try_connect(&rig.lab.balancer, LISTEN_V4)?;
        let is_open = down.is_open_after(Duration::from_millis(50));
        is_open.then_some(())
    });
    rig.assert_serves(fresh_client_v4());
}

/// Opens one connection over the limit of pending headers, and returns those that stay open. A worker closes the
/// connection that it accepted last, which is not always the one that was opened last.
fn exceed_pending_limit(rig: &ProxyRig, mut silent: Vec<Conn>) -> Vec<Conn> {
    if let Some(one_more) = Conn::try_connect(&rig.lab.balancer, LISTEN_V4) {
        silent.push(one_more);
        let is_closed = |conn: &Conn| !conn.is_open_after(Duration::from_millis(1));
        let refused = wait_for("a connection is refused", || {
            silent.iter().position(is_closed)
        });
        silent.remove(refused).wait_closed();
    }
    for conn in &silent {
        conn.assert_stays_open(Duration::from_millis(20));
    }
    silent
}

/// A connection that sends its header at once takes no slot of the pending headers, and is served when they are
/// all taken.
#[test]
fn connection_with_its_header_needs_no_pending_slot() {
    let rig = ProxyRig::new(&["--max-pending-per-peer=10"]);
    let _silent = exceed_pending_limit(&rig, (0..10).map(|_| rig.connect_and_send(&[])).collect());
    // The header has arrived before the proxy polls the connection for the first time.
    rig.proxy.suspend();
    let client = fresh_client_v4();
    let down = rig.connect_and_send(&header_for(client));
    rig.proxy.signal(Signal::CONT);
    let up = rig.accept_client(client);
    down.assert_reaches(&up, b"ping");
}

/// A thousand idle clients cost little, and each of their connections still relays.
#[test]
fn thousand_idle_connections_cost_little() {
    peername_sys::process::limits::raise_open_files()
        .expect("descriptors for a thousand connections");
    let mut rig = ProxyRig::new(&[]);
    rig.assert_serves(fresh_client_v4());
    let idle = rig.proxy.resident_kib();
    let pairs: Vec<(Conn, Conn)> = (0..1000)
        .map(|_| rig.connect_client(fresh_client_v4()))
        .collect();
    let grown = rig.proxy.resident_kib().saturating_sub(idle);
    assert!(grown < 4 * 1000, "{grown} KiB for 1000 idle connections");
    for (down, up) in &pairs {
        down.assert_reaches(up, b"ping");
        up.assert_reaches(down, b"pong");
    }
}

/// A loop that polls keeps a processor awake for nothing.
#[test]
fn idle_proxy_does_not_wake_up() {
    let rig = ProxyRig::new(&[]);
    let _pair = rig.connect_client(fresh_client_v4());
    let wake_ups = || -> u64 {
        let threads = rig.proxy.thread_status_fields("voluntary_ctxt_switches");
        let counts = threads.iter().map(|(_, count)| count.parse::<u64>());
        counts.sum::<Result<_, _>>().expect("numbers")
    };
    // At the start, the reply-path probe and timers still wake threads.
    thread::sleep(Duration::from_secs(1));
    let before = wake_ups();
    thread::sleep(Duration::from_secs(2));
    let woken = wake_ups() - before;
    assert!(woken < 20, "{woken} times in two seconds");
}

/// The system starts no further thread (`TasksMax=`, RLIMIT_NPROC). A reload reads files on a thread that runs since the start.
#[test]
fn reload_needs_no_further_thread() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let proxy = Peername::proxy_as_nobody(&lab, &scratch, &[]);
    proxy.wait_started();
    // tokio would end an idle thread after ten seconds.
    thread::sleep(Duration::from_secs(11));
    // Another user's limit could only be set with CAP_SYS_RESOURCE.
    let (setpriv, options) = AS_NOBODY.split_first().expect("a program");
    let pid = format!("--pid={}", proxy.pid());
    let prlimit = ["prlimit", &pid, "--nproc=0"];
    lab.server.run(setpriv, &[options, &prlimit].concat());
    proxy.reload("\"reloaded\"");
}

/// The kernel allows an ordinary user few large pipes (pipe(7), pipe-user-pages-soft); mmproxy-rs served 32
/// connections and no more.
#[test]
fn ordinary_users_pipe_quota_suffices() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let scratch = Scratch::new();
    let _proxy = Peername::proxy_as_nobody(&lab, &scratch, &["--relay=splice"]);
    let connect = |_| {
        let (down, up) = connect_fresh_client(&lab, LISTEN_V4, &backend);
        (down, up)
    };
    let pairs: Vec<(Conn, Conn)> = (0..300).map(connect).collect();
    let bytes = pattern(8, 64 << 10);
    for (down, up) in &pairs {
        for (from, to) in [(down, up), (up, down)] {
            from.send(&bytes);
            assert_same(&to.recv(bytes.len()), &bytes);
        }
    }
}

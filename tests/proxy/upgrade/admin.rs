//! The admin endpoint during an upgrade and after it.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::quiet_args;
use crate::harness::addr::{LISTEN_V4, TARGET_V4, v4};
use crate::harness::admin::{get, wait_listed};
use crate::harness::backend::Backend;
use crate::harness::conn::{Conn, End};
use crate::harness::lab::{Lab, Scratch, assert_contains, wait_until};
use crate::harness::peername::PROXY_ARGS;
use crate::harness::rig::load::SetOnDrop;
use crate::harness::rig::proxy::connect_fresh_client;
use crate::harness::rig::upgrade::{Binary, UpgradeRig};

/// The new process reports the upgrade, and keeps the log level and the maintenance that were set over the admin endpoint.
#[test]
fn new_process_reports_the_upgrade_and_keeps_log_level_and_maintenance() {
    let lab = Lab::new();
    let scratch = Scratch::new();
    let path = scratch.path_text("admin.sock");
    let socket = format!("--admin=unix:{path}");
    let args = [&quiet_args()[..], &[&socket]].concat();
    let mut rig = UpgradeRig::start(&lab.server, &args);
    let by_path = ["--unix-socket", &path];
    let status = || -> Value {
        let answer = get(&lab.server, &by_path, "/status");
        let json = answer.strip_suffix("200").expect("200");
        serde_json::from_str(json).expect("JSON")
    };
    assert_eq!(status()["last_upgrade"], Value::Null);
    let put = |path, value| put(&lab, &by_path, path, value);
    assert_eq!(put("/log-level", "debug"), "debug\n200");
    assert_eq!(put("/readyz", "maintenance"), "maintenance\n200");
    let old = rig.serving_inside();
    assert_eq!(status()["pid"].to_string(), old);
    rig.upgrade(&lab.server).expect("it upgrades");
    let new = status();
    assert_eq!(new["pid"].to_string(), rig.serving_inside());
    let upgrade = &new["last_upgrade"];
    assert_eq!(upgrade["refused"], Value::Null, "{new}");
    assert_eq!(upgrade["replaced_pid"].to_string(), old, "{new}");
    assert!(upgrade["at"].as_u64().is_some_and(|at| at > 0), "{new}");
    assert_eq!(get(&lab.server, &by_path, "/log-level"), "debug\n200");
    let readiness = get(&lab.server, &by_path, "/readyz");
    assert!(readiness.starts_with("maintenance"), "{readiness}");
    assert_eq!(put("/readyz", "ready"), "ready\n200");
    rig.upgrade(&lab.server).expect("it upgrades");
    assert_eq!(get(&lab.server, &by_path, "/readyz"), "ready\n200");
}

/// The old process still answers `PUT` while the new one starts.
#[test]
fn new_process_keeps_log_level_and_maintenance_that_were_set_during_the_upgrade() {
    let lab = Lab::new();
    let scratch = Scratch::new();
    let path = scratch.path_text("admin.sock");
    let socket = format!("--admin=unix:{path}");
    let args = [&quiet_args()[..], &[&socket]].concat();
    let rig = UpgradeRig::start(&lab.server, &args);
    let by_path = ["--unix-socket", &path];
    let put = |path, value| put(&lab, &by_path, path, value);
    assert_eq!(put("/log-level", "debug"), "debug\n200");
    rig.install(&lab.server, Binary::Waits);
    rig.signal(Signal::USR2);
    rig.wait_waiting();
    assert_eq!(put("/log-level", "warn"), "warn\n200");
    assert_eq!(put("/readyz", "maintenance"), "maintenance\n200");
    wait_until("the end of the old process", || {
        !rig.servers().contains(&rig.serving)
    });
    assert_eq!(get(&lab.server, &by_path, "/log-level"), "warn\n200");
    let readiness = get(&lab.server, &by_path, "/readyz");
    assert!(readiness.starts_with("maintenance"), "{readiness}");
}

/// Connections to the admin endpoint are never refused, and the path of its Unix socket stays.
#[test]
fn upgrade_hands_the_admin_endpoint_over() {
    let lab = Lab::new();
    let scratch = Scratch::new();
    let path = scratch.path_text("admin.sock");
    let (by_path, by_tcp) = (format!("--admin=unix:{path}"), BY_TCP);
    let by_path = by_path.as_str();
    for options in [&[by_path][..], &[by_tcp], &[by_tcp, by_path]] {
        let args = [PROXY_ARGS, options].concat();
        let mut rig = UpgradeRig::start(&lab.server, &args);
        let get_by = |option: &str, resource: &str| {
            if option.contains("unix") {
                let url = format!("http://localhost{resource}");
                lab.server
                    .run("curl", &["-sf", "--unix-socket", &path, &url])
            } else {
                let url = format!("http://127.0.0.1:9100{resource}");
                lab.server.run("curl", &["-sf", &url])
            }
        };
        let get = |resource: &str| get_by(options[0], resource);
        let is_ready = || {
            let mut answers = options.iter().map(|option| get_by(option, "/readyz"));
            answers.all(|answer| answer == "ready\n")
        };
        let connect = || {
            for option in options {
                let connected = if option.contains("unix") {
                    UnixStream::connect(&path).map(drop)
                } else {
                    lab.server
                        .enter(|| TcpStream::connect("127.0.0.1:9100"))
                        .map(drop)
                };
                connected.expect(option);
            }
        };
        for _ in 0..3 {
            assert!(is_ready());
            while_connecting(connect, || {
                rig.upgrade(&lab.server).expect("it upgrades");
                assert!(is_ready());
                rig.wait_drained();
            });
            assert!(is_ready());
        }
        rig.install(&lab.server, Binary::Fails);
        rig.upgrade(&lab.server).expect_err("a refusal");
        assert!(is_ready());
        let metrics = get("/metrics");
        assert_contains(&metrics, &["peername_upgrades_refused_total 1\n"]);
        let status = get("/status");
        assert_contains(&status, &["\"refused\": \"the new process"]);
        rig.signal(Signal::TERM);
        wait_until("the exit", || rig.servers().is_empty());
        assert!(!fs::exists(&path).expect("stat"));
    }
}

/// The new process makes a socket of its own at a path that no longer leads to the old one's, as at a start. If another process
/// listens there by now, the upgrade is refused.
#[test]
fn admin_path_that_was_removed_is_made_again_and_one_of_another_process_is_left() {
    let lab = Lab::new();
    let scratch = Scratch::new();
    let path = scratch.path_text("admin.sock");
    let socket = format!("--admin=unix:{path}");
    let args = [PROXY_ARGS, &[&socket]].concat();
    let mut rig = UpgradeRig::start(&lab.server, &args);
    let by_path = ["--unix-socket", &path];
    fs::remove_file(&path).expect("the socket");
    rig.upgrade(&lab.server).expect("it upgrades");
    rig.wait_drained();
    assert_eq!(get(&lab.server, &by_path, "/readyz"), "ready\n200");

    fs::remove_file(&path).expect("the socket");
    let other = UnixListener::bind(&path).expect("bind(2)");
    let error = rig.upgrade(&lab.server).expect_err("a refusal");
    assert_contains(&error, &["another process listens there"]);
    rig.signal(Signal::TERM);
    wait_until("the exit", || rig.servers().is_empty());
    assert!(fs::exists(&path).expect("stat"));
    drop(other);
}

/// Runs `work` while another thread calls `connect` again and again, which panics if a connection is refused.
#[track_caller]
fn while_connecting(connect: impl Fn() + Sync, work: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // The thread ends even if the test fails.
        let end = SetOnDrop(&is_over);
        let connecting = scope.spawn(|| {
            while !is_over.load(Relaxed) {
                connect();
                thread::sleep(Duration::from_millis(5));
            }
        });
        work();
        drop(end);
        assert!(
            connecting.join().is_ok(),
            "a connection was refused, see above"
        );
    });
}

/// The process that was replaced closes idle connections, so that their clients ask the new process. A new connection has its
/// first request answered.
#[test]
fn replaced_process_leaves_kept_alive_admin_connections() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let scratch = Scratch::new();
    let path = scratch.path_text("admin.sock");
    let by_path = format!("--admin=unix:{path}");
    let args = [PROXY_ARGS, &[BY_TCP, &by_path]].concat();
    let mut rig = UpgradeRig::start(&lab.server, &args);
    let _open = connect_fresh_client(&lab, LISTEN_V4, &backend);
    let connect = || Conn::connect(&lab.server, ADMIN_ADDRESS);
    let (new, kept) = (connect(), connect());
    // The process has accepted both, because it answers the later one.
    kept.send(READY_REQUEST);
    kept.recv_text_until(|text| text.ends_with("ready\n"));
    let mut late = UnixStream::connect(&path).expect("connect(2)");
    get(&lab.server, &["--unix-socket", &path], "/readyz");
    rig.upgrade(&lab.server).expect("it upgrades");
    // The new process would not learn of it.
    late.write_all(PUT_MAINTENANCE).expect("write(2)");
    let mut refusal = String::new();
    late.read_to_string(&mut refusal).expect("read(2)");
    assert_contains(&refusal, &["503", "another process has taken over"]);
    new.send(READY_REQUEST);
    assert_eq!(kept.wait_closed().0, End::Fin);
    let (answer, end) = new.recv_to_end();
    assert_contains(&String::from_utf8_lossy(&answer), &["connection: close"]);
    assert_eq!(end, End::Fin);
    let fresh = connect();
    fresh.send(READY_REQUEST);
    fresh.recv_text_until(|text| text.ends_with("ready\n"));
}

/// The process that was replaced closes its socket: once the new process ends, nothing listens.
#[test]
fn replaced_process_closes_the_admin_socket() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let args = [PROXY_ARGS, &[BY_TCP]].concat();
    let mut rig = UpgradeRig::start(&lab.server, &args);
    let old = rig.serving;
    let _open = connect_fresh_client(&lab, LISTEN_V4, &backend);
    rig.upgrade(&lab.server).expect("it upgrades");
    rig.signal(Signal::TERM);
    wait_until("the end of the new process", || rig.servers() == [old]);
    lab.server.wait_connection_refused(ADMIN_ADDRESS);
    assert_eq!(rig.servers(), [old]);
}

/// An operator may confirm in `peername top` what was listed before.
#[test]
fn id_of_the_old_process_ends_no_connection_of_the_new_one() {
    let lab = Lab::new();
    let backend = Backend::listen(&lab.server, TARGET_V4);
    let scratch = Scratch::new();
    let path = scratch.path_text("admin.sock");
    let (listen, to) = (format!("--listen={LISTEN_V4}"), format!("--to={TARGET_V4}"));
    let socket = format!("--admin=unix:{path}");
    // A worker counts its connections.
    let args = ["forward", &listen, &to, "--workers=1", &socket];
    let mut rig = UpgradeRig::start(&lab.server, &args);
    let by_path = ["--unix-socket", &path];
    let connect = || {
        let down = Conn::connect_and_send(&lab.balancer, LISTEN_V4, b"hello");
        (down, backend.accept())
    };
    let list_open = || {
        wait_listed(&lab.server, &by_path, "/connections", |connection| {
            connection["state"] == "open"
        })
    };
    let _of_old = connect();
    let before = list_open();
    rig.upgrade(&lab.server).expect("it upgrades");
    let (down, _up) = connect();
    let after = list_open();
    assert_ne!(before[0]["id"], after[0]["id"]);
    let delete = [&by_path[..], &["-X", "DELETE"]].concat();
    let id = format!("/connections/{}", before[0]["id"]);
    assert!(get(&lab.server, &delete, &id).ends_with("404"));
    down.assert_stays_open(Duration::from_millis(100));
}

/// Sets a value over the admin endpoint.
fn put(lab: &Lab, by_path: &[&str], path: &str, value: &str) -> String {
    let args = [by_path, &["-X", "PUT", "-d", value]].concat();
    get(&lab.server, &args, path)
}

const BY_TCP: &str = "--admin=127.0.0.1:9100";
const ADMIN_ADDRESS: SocketAddr = v4([127, 0, 0, 1], 9100);
const READY_REQUEST: &[u8] = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
const PUT_MAINTENANCE: &[u8] =
    b"PUT /readyz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 11\r\n\r\nmaintenance";

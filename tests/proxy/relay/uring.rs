//! Small messages are relayed by io_uring where the kernel allows it, and by epoll where it does not.

use std::collections::HashMap;

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4, fresh_client_v6};
use crate::harness::conn::Conn;
use crate::harness::lab::failing::NO_IO_URING;
use crate::harness::lab::{Lab, assert_fails, failing_calls};
use crate::harness::pattern::{assert_same, pattern};
use crate::harness::peername::{BINARY, Peername};
use crate::harness::rig::proxy::ProxyRig;

#[test]
fn small_messages_are_relayed_by_io_uring() {
    for (relay, messages, goes_by_ring) in [
        ("--relay=auto", 8, false),
        ("--relay=auto", 40, true),
        ("--relay=uring", 1, true),
        ("--relay=copy", 40, false),
        ("--relay=splice", 40, false),
    ] {
        if goes_by_ring && !has_io_uring() {
            continue;
        }
        let mut rig = ProxyRig::new(&[relay]);
        rig.proxy.wait_started();
        let before = watched(&rig.proxy);
        let (down, up) = rig.connect_client(fresh_client_v4());
        converse(&down, &up, messages);
        assert_eq!(has_ring(&rig.proxy), goes_by_ring, "{relay}, {messages}");
        // The two sockets of the connection must not be watched by epoll.
        let is_watched = watched(&rig.proxy) > before;
        assert_eq!(is_watched, !goes_by_ring, "{relay}, {messages}");
        let large = pattern(1, 4 << 20);
        down.send(&large);
        assert_same(&up.recv(large.len()), &large);
        converse(&down, &up, messages);
        down.shutdown_write();
        up.shutdown_write();
        down.recv_to_end();
        up.recv_to_end();
        rig.proxy.wait_outcome("finished");
        let totals = rig.proxy.stop();
        let carried = 4 * 2 * messages as u64;
        assert_eq!(totals["bytes_to_downstream"], carried, "{totals}");
        assert_eq!(totals["bytes_to_upstream"], carried + (4 << 20), "{totals}");
    }
}

/// Small requests do not move large answers to io_uring.
#[test]
fn downloads_stay_with_epoll() {
    let rig = ProxyRig::new(&[]);
    let (down, up) = rig.connect_client(fresh_client_v4());
    let large = pattern(2, 20_000);
    for _ in 0..100 {
        down.send(b"more");
        assert_eq!(up.recv(4), b"more");
        up.send(&large);
        assert_same(&down.recv(large.len()), &large);
    }
    assert!(!has_ring(&rig.proxy));
}

#[test]
fn without_io_uring_only_an_explicit_relay_option_fails() {
    let without = failing_calls(NO_IO_URING);
    let without = without.each_ref().map(String::as_str);
    let rig = ProxyRig::start_through(&without, &[]);
    rig.proxy.wait_logged("without io_uring");
    for client in [fresh_client_v4(), fresh_client_v6()] {
        let (down, up) = rig.connect_client(client);
        converse(&down, &up, 100);
    }
    assert!(!has_ring(&rig.proxy));

    let lab = Lab::new();
    let program = [&without[..], &[BINARY]].concat();
    let (listen, target) = (LISTEN_V4.to_string(), TARGET_V4.to_string());
    let args = ["proxy", "--listen", &listen, "--target-v4", &target];
    let args = [&args[..], &["--trust=10.81.0.2", "--relay=uring"]].concat();
    let output = Peername::run_with_input(&lab.server, &program, &args, "");
    assert_fails(&output, 2, &["--relay uring: io_uring_setup(2)"]);
}

/// Whether this machine allows io_uring.
pub(crate) fn has_io_uring() -> bool {
    let ring = peername_sys::uring::MultishotReceiver::new();
    if let Err(error) = &ring {
        eprintln!("{error}: io_uring is not tested");
    }
    ring.is_ok()
}

fn converse(down: &Conn, up: &Conn, messages: usize) {
    for _ in 0..messages {
        down.send(b"ping");
        assert_eq!(up.recv(4), b"ping");
        up.send(b"pong");
        assert_eq!(down.recv(4), b"pong");
    }
}

fn has_ring(proxy: &Peername) -> bool {
    descriptors(proxy)
        .values()
        .any(|to| to.contains("[io_uring]"))
}

/// Counts the sockets that the proxy's epoll instances watch; an instance may have several descriptors
/// (proc(5), fdinfo).
fn watched(proxy: &Peername) -> usize {
    let all = descriptors(proxy);
    let is_socket = |fd: &str| all.get(fd).is_some_and(|to| to.starts_with("socket:"));
    let of = |fd: &String| {
        let info = std::fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", proxy.pid()));
        let info = info.unwrap_or_default();
        let targets = info.lines().filter_map(|line| line.strip_prefix("tfd:"));
        let targets = targets.filter_map(|rest| rest.split_whitespace().next());
        targets.filter(|fd| is_socket(fd)).count()
    };
    all.keys().map(of).sum()
}

/// The open descriptors, and what each refers to.
fn descriptors(proxy: &Peername) -> HashMap<String, String> {
    let all = std::fs::read_dir(format!("/proc/{}/fd", proxy.pid())).expect("its descriptors");
    let named = all.flatten().filter_map(|entry| {
        let to = std::fs::read_link(entry.path()).ok()?;
        let fd = entry.file_name().into_string().ok()?;
        Some((fd, to.to_string_lossy().into_owned()))
    });
    named.collect()
}

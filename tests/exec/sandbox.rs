//! Service sandboxes (systemd.exec(5)). `exec` notices at the start that an interface of the kernel is denied: it uses another
//! one instead, or fails and names the setting of the unit.

use std::time::Duration;

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::failing::{Denial, NO_NETLINK, denied};
use crate::harness::lab::{Host, Lab, Process, failing_calls, stderr_text, wait_until};
use crate::harness::peername::{BINARY, Peername};
use crate::harness::rig::exec::{MODES, NOTIFY, PRELOAD, ServerRig, built_library, v2};

/// `RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6` denies netlink. A server that gets more connections, one after another,
/// than the table has slots serves all of them.
#[test]
fn closed_connections_are_freed_without_netlink() {
    for mode in MODES {
        let served = start(mode, "--accept=edge --brief");
        for _ in 0..300 {
            served.assert_serves();
        }
    }
}

/// A sweep of the table frees the slots of closed connections only.
#[test]
fn open_connections_keep_their_slots_without_netlink() {
    for mode in MODES {
        let served = start(mode, "--accept=level --hold");
        // The server keeps the connections that it answers.
        let connect_held = || {
            let client = fresh_client_v4();
            let conn = served.connect_and_send(&[&v2(client)[..], b"hi"].concat());
            let answered = conn.is_answered_after(Duration::from_secs(5));
            (conn, answered)
        };
        let conns: Vec<_> = (0..80).map(|_| connect_held()).collect();
        let held = conns.iter().filter(|(_, answered)| *answered).count();
        assert_eq!(held, 64);
        drop(conns);
        wait_until("a free slot", || connect_held().1);
    }
}

/// Only netlink lists MPTCP sockets. Without it, MPTCP connections are refused, and TCP ones are served.
#[test]
fn multipath_connections_are_refused_without_netlink() {
    for mode in MODES {
        let served = start(mode, "--accept=level --brief --multipath");
        let conn = Conn::connect_multipath(&served.lab.balancer, LISTEN_V4);
        conn.send(&[&v2(fresh_client_v4())[..], b"hi"].concat());
        conn.wait_reset();
        served.process.wait_logged("AF_NETLINK");
        served.assert_serves();
    }
}

/// Debian's unit of Redis allows the address families of [`closed_connections_are_freed_without_netlink`].
#[test]
fn redis_serves_more_connections_than_slots_without_netlink() {
    built_library();
    let lab = Lab::without_routes();
    let redis =
        "redis-server --bind 0.0.0.0 --port 8443 --appendonly no --protected-mode no --save ";
    let args: Vec<&str> = ["exec", "--trust=any", "--max-connections=64", "--"]
        .into_iter()
        .chain(redis.split(' '))
        .collect();
    let filter = failing_calls(NO_NETLINK);
    let process = Process::start_through(&lab.server, &filter, BINARY, &args);
    let _redis = process.wait_listening(&[LISTEN_V4]);
    for _ in 0..200 {
        let client = fresh_client_v4();
        let request = [&v2(client)[..], b"CLIENT INFO\r\n"].concat();
        let conn = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &request);
        let shown = format!(" addr={client} ");
        conn.recv_text_until(|answer| answer.contains(&shown));
    }
}

/// `SystemCallFilter=` denies a call that `exec` needs, with and without `SystemCallErrorNumber=EPERM`. `exec` fails and names
/// the call. If only processes without the library need it, `--mode preload` names it and starts the program.
#[test]
fn denied_system_call_is_named_at_the_start() {
    let always = [
        "memfd_create",
        "flock",
        "seccomp",
        "pidfd_open",
        "pidfd_send_signal",
        "capset",
    ];
    let without_library = ["pidfd_getfd", "process_vm_readv"];
    for denial in [Denial::Eperm, Denial::Kill] {
        for call in always {
            assert_named_at_start(call, denial, PRELOAD, 125);
            assert_named_at_start(call, denial, NOTIFY, 125);
        }
        for call in without_library {
            assert_named_at_start(call, denial, PRELOAD, 0);
            assert_named_at_start(call, denial, NOTIFY, 125);
        }
    }
}

#[track_caller]
fn assert_named_at_start(call: &str, denial: Denial, mode: &str, code: i32) {
    built_library();
    let host = Host::new();
    let calls = denied(call, denial);
    let program = [&failing_calls(&calls)[..], &[BINARY]].concat();
    let args = ["exec", mode, "--trust=any", "--", "true"];
    let ended = Peername::run_with_input(&host, &program, &args, "");
    let printed = stderr_text(&ended);
    let case = format!("{call} {denial:?} {mode}: {printed}");
    assert_eq!(ended.status.code(), Some(code), "{case}");
    assert!(
        printed.contains(&format!("SystemCallFilter={call}")),
        "{case}"
    );
}

/// Containers of systemd-nspawn, and Docker's without CAP_SYS_PTRACE, deny pidfd_getfd(2). The library does not need it.
#[test]
fn library_serves_without_access_to_the_process() {
    let calls = denied("pidfd_getfd", Denial::Eperm);
    let filter = failing_calls(&calls);
    let served = ServerRig::with_mode_through(PRELOAD, &filter, "--accept=edge --brief", &[]);
    served.assert_serves();
}

/// Where fallocate(2) is denied, or missing as on some file systems, the table of clients is written.
#[test]
fn table_is_allocated_without_fallocate() {
    let calls = denied("fallocate", Denial::Eperm);
    let program = [&failing_calls(&calls)[..], &[BINARY]].concat();
    for mode in MODES {
        let allocated =
            "[ $(stat -c %b $PEERNAME_TABLE) -ge $(($(stat -c %s $PEERNAME_TABLE) / 512)) ]";
        let test = if mode == PRELOAD { allocated } else { "true" };
        let args = ["exec", mode, "--trust=any", "--", "sh", "-c", test];
        built_library();
        let ended = Peername::run_with_input(&Host::new(), &program, &args, "");
        assert!(ended.status.success(), "{mode}: {ended:?}");
    }
}

fn start(mode: &str, server_args: &str) -> ServerRig {
    let filter = failing_calls(NO_NETLINK);
    ServerRig::with_mode_through(mode, &filter, server_args, &["--max-connections=64"])
}

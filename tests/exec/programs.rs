//! `peername exec` with well-known programs: every program, in every mode that reaches it, over both
//! families.
//!
//! ```text
//!                    program listens on        balancer connects over   header names
//!   IPv4             an IPv4 socket            IPv4                     an IPv4 client
//!   IPv6 on IPv4     an IPv4 socket            IPv4                     an IPv6 client
//!   dual-stack       both families             IPv4                     an IPv4 client
//!   IPv6             both families             IPv6                     an IPv6 client
//! ```
//!
//! Each row is tested with hand-made headers of both versions. Then HAProxy (version 2) sends to the IPv4 socket, and nginx
//! (version 1) to the dual-stack one. The evidence is the client that the program reports. `docs/exec.md` has the result of
//! each program and mode.

mod catalogue;
mod clients;
mod multipath;
mod running;

use std::net::SocketAddr;

use crate::harness::addr::{
    CLIENT_V4, CLIENT_V6, FRONT_V4, FRONT_V6, LISTEN_V4, LISTEN_V6, fresh_client_v4,
    fresh_client_v6,
};
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, Scratch, stderr_text, wait_until};
use crate::harness::peername::Peername;
use crate::harness::programs::sender::{Haproxy, NginxStream};
use crate::harness::rig::exec::{pseudo_ipv4, v1, v2};

use catalogue::Program;
use peername_sys::process::pidfd::Signal;
use running::{Listener, Mode, Running};

macro_rules! rows {
    ($($name:ident)*) => { $(
        #[test]
        fn $name() {
            assert_sees_its_clients(&catalogue::$name());
        }
    )* };
}

rows! {
    go_static go_cgo c_static c_musl python node erlang java
    redis nginx nginx_reuseport apache postgres sshd socat socat_v6 netcat
}

fn assert_sees_its_clients(program: &Program) {
    for mode in Mode::ALL {
        if mode == Mode::Preload && !program.can_be_preloaded {
            assert_refused(program);
            continue;
        }
        if program.listens_on.contains(&Listener::V4) {
            assert_sees_on_ipv4(&Running::start(program, mode, Listener::V4));
        }
        if program.listens_on.contains(&Listener::Both) {
            assert_sees_on_both(&Running::start(program, mode, Listener::Both));
        }
    }
}

fn assert_sees_on_ipv4(running: &Running<'_>) {
    for header in [v1, v2] {
        let client = fresh_client_v4();
        running.assert_sees(connect(running, LISTEN_V4), &header(client), client);
        let client = fresh_client_v6();
        match running.mode {
            // The proxy in the program's network targets [::1] for such clients, where there is no listener.
            Mode::Netns => running.assert_refuses(connect(running, LISTEN_V4), &header(client)),
            _ => running.assert_sees(
                connect(running, LISTEN_V4),
                &header(client),
                shown_by_ipv4_socket(client),
            ),
        }
    }
    let _haproxy = Haproxy::start(&running.lab, LISTEN_V4, "send-proxy-v2");
    (running.program.real_client)(running);
}

fn assert_sees_on_both(running: &Running<'_>) {
    for header in [v1, v2] {
        for (listener, client) in [
            (LISTEN_V4, fresh_client_v4()),
            (LISTEN_V6, fresh_client_v6()),
        ] {
            running.assert_sees(connect(running, listener), &header(client), client);
        }
    }
    let _nginx = NginxStream::start(&running.lab, LISTEN_V6);
    let conn = Conn::connect(&running.lab.client, FRONT_V6);
    running.assert_sees(conn, b"", CLIENT_V6);
}

/// New workers take over the listener, with connections that have an incomplete header.
#[test]
fn nginx_reload_loses_no_client() {
    for mode in Mode::ALL {
        let program = catalogue::nginx();
        let running = Running::start(&program, mode, Listener::V4);
        let slow = fresh_client_v4();
        let (first, rest) = (&v2(slow)[..20], &v2(slow)[20..]);
        let waiting = connect(&running, LISTEN_V4);
        waiting.send(first);
        let client = fresh_client_v4();
        running.assert_sees(connect(&running, LISTEN_V4), &v2(client), client);
        let before = running.instances();
        running.signal_program(Signal::HUP);
        wait_until("new workers alone", || {
            let now = running.instances();
            let old = now.iter().filter(|pid| before.contains(pid)).count();
            // The master stays, and has two new workers.
            old == 1 && now.len() == 3
        });
        running.assert_sees(waiting, rest, slow);
        for client in [(); 8].map(|()| fresh_client_v4()) {
            running.assert_sees(connect(&running, LISTEN_V4), &v2(client), client);
        }
    }
}

/// The workers run as another user, which could not open the table. Twenty clients connect, so that each worker has some, and
/// the headers of a few come in two pieces.
#[test]
fn workers_see_their_clients() {
    for (program, modes) in [
        (catalogue::nginx(), &[Mode::Preload][..]),
        // A header is awaited at the listener of one worker, and any worker may be woken for it.
        (catalogue::nginx_reuseport(), &Mode::ALL),
        (catalogue::apache(), &[Mode::Preload]),
    ] {
        for mode in modes {
            let running = Running::start(&program, *mode, Listener::V4);
            for number in 0..20_usize {
                let client = fresh_client_v4();
                let header = v2(client);
                let split = if number.is_multiple_of(4) { 20 } else { 0 };
                let conn = connect(&running, LISTEN_V4);
                conn.send(&header[..split]);
                running.assert_sees(conn, &header[split..], client);
            }
        }
    }
}

fn connect(running: &Running<'_>, to: SocketAddr) -> Conn {
    Conn::connect(&running.lab.balancer, to)
}

/// Asserts that `exec` refuses to start such a program, with an error that names it: the program would report its
/// balancer as its client.
fn assert_refused(program: &Program) {
    let host = Host::new();
    let scratch = Scratch::new();
    let command = (program.command)(&catalogue::CommandContext {
        host: &host,
        scratch: &scratch,
        listener: Listener::V4,
    });
    let args: Vec<&str> = ["exec", "--mode=preload", "--trust=any", "--"]
        .into_iter()
        .chain(command.iter().map(String::as_str))
        .collect();
    let ended = Peername::run(&host, &args);
    let output = stderr_text(&ended);
    assert_eq!(ended.status.code(), Some(125), "{output}");
    assert!(
        output.contains(&command[0]) && output.contains("--mode notify"),
        "{output}"
    );
}

/// The address by which preload and notify show an IPv6 client on an IPv4 socket.
fn shown_by_ipv4_socket(client: SocketAddr) -> SocketAddr {
    match client {
        SocketAddr::V6(v6) => (pseudo_ipv4(*v6.ip()), v6.port()).into(),
        v4 @ SocketAddr::V4(_) => v4,
    }
}

/// Connects the lab's client through HAProxy, and asserts that the program sees it.
fn connect_through_haproxy(running: &Running<'_>) {
    let conn = Conn::connect(&running.lab.client, FRONT_V4);
    running.assert_sees(conn, b"", CLIENT_V4);
}

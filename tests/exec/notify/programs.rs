//! Every call that waits for connections, and every kind of header, under the supervisor.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;

use super::faults::kill_at_once;
use crate::harness::addr::{
    BALANCER_V4, FRONT_V4, FRONT_V6, LISTEN_V4, fresh_client_v4, fresh_client_v6,
};
use crate::harness::conn::{Conn, End};
use crate::harness::header_bytes;
use crate::harness::lab::{Lab, Process, Scratch, WAIT_LIMIT};
use crate::harness::peername::{AS_NOBODY, NO_CAPABILITIES, copy_executable};
use crate::harness::rig::exec_notify::{
    NotifyRig, compiled_go_server, network_of, wait_helper_pid,
};
use crate::harness::rig::proxy::header_for;

#[test]
fn static_program_sees_every_client_by_every_call() {
    for variant in [
        "block",
        "threads",
        "fork",
        "poll",
        "select",
        "level",
        "edge",
        "exclusive",
        "oneshot",
    ] {
        let exec = NotifyRig::start_variant(variant, "4", &[]);
        for client in [fresh_client_v4(), fresh_client_v4(), fresh_client_v4()] {
            assert_eq!(
                exec.report_for(&header_for(client)),
                [client; 2],
                "{variant}"
            );
        }
    }
}

#[test]
fn dual_stack_listener_sees_both_families() {
    let exec = NotifyRig::start_variant("edge", "6", &[]);
    let (v4, v6) = (fresh_client_v4(), fresh_client_v6());
    assert_eq!(exec.report_for_v6(&header_for(v6)), [v6; 2]);
    // As the kernel shows IPv4 on an IPv6 socket.
    let mapped = |addr: SocketAddr| match addr {
        SocketAddr::V4(v4) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
        v6 => v6,
    };
    assert_eq!(exec.report_for(&header_for(v4)), [mapped(v4); 2]);
    assert_eq!(exec.report_for(&header_for(v6)), [v6; 2]);
}

#[test]
fn every_header_is_understood() {
    let exec = NotifyRig::start_variant("level", "4", &[]);
    let client = fresh_client_v4();
    let v1 = header_bytes::v1(client, FRONT_V4);
    assert_eq!(exec.report_for(&v1), [client; 2], "v1");
    let tlvs = header_bytes::tlv(0xe0, &[7; 300]);
    let v2 = header_bytes::v2(client, FRONT_V4, &tlvs);
    assert_eq!(exec.report_for(&v2), [client; 2], "300 bytes of TLVs");
    for itself in [
        header_bytes::raw(header_bytes::LOCAL, header_bytes::UNSPEC, &[]),
        header_bytes::nlb_health_check(),
        b"PROXY UNKNOWN\r\n".to_vec(),
    ] {
        let conn = exec.connect_and_send(&itself);
        let balancer = conn.local_addr();
        assert_eq!(
            crate::harness::rig::exec_notify::recv_addresses(&conn),
            [balancer; 2]
        );
        assert_eq!(balancer.ip(), BALANCER_V4);
    }
}

/// An IPv4 socket can't show an IPv6 client. It shows an address that no host has, never the balancer's.
#[test]
fn ipv6_client_of_an_ipv4_listener_has_a_pseudo_address() {
    let exec = NotifyRig::start_variant("block", "4", &[]);
    let client = fresh_client_v6();
    let [accepted, peer] = exec.report_for(&header_bytes::v1(client, FRONT_V6));
    assert_eq!((accepted, accepted.port()), (peer, client.port()));
    let SocketAddr::V4(shown) = accepted else {
        panic!("{accepted} on an IPv4 socket");
    };
    assert!(shown.ip().octets()[0] >= 240, "{shown}");
}

#[test]
fn connection_without_a_header_is_reset_and_never_seen() {
    let exec = NotifyRig::start_variant("threads", "4", &[]);
    for bytes in [
        &b"GET / HTTP/1.0\r\n\r\n"[..],
        b"PROXY TCP4 x\r\n",
        b"\r\n\r\n\0\r\nQUIT\n!",
    ] {
        let (end, _) = exec.connect_and_send(bytes).wait_closed();
        assert_eq!(end, End::Reset);
    }
    let client = fresh_client_v4();
    assert_eq!(exec.report_for(&header_for(client)), [client; 2]);
}

#[test]
fn untrusted_peer_is_reset() {
    let exec = NotifyRig::start_variant("block", "4", &["--trust=192.0.2.1"]);
    // A peer outside the trusted network: the server's own host, over loopback.
    let conn = Conn::try_connect(&exec.lab.server, "127.0.0.1:8443".parse().unwrap());
    if let Some(conn) = conn {
        conn.send(&header_for(fresh_client_v4()));
        assert_eq!(conn.wait_closed().0, End::Reset);
    }
    let client = fresh_client_v4();
    assert_eq!(exec.report_for(&header_for(client)), [client; 2]);
}

#[test]
fn connection_without_an_optional_header_keeps_its_address() {
    let exec = NotifyRig::start_variant("edge", "4", &["--header=optional"]);
    let conn = exec.connect_and_send(b"hello");
    let balancer = conn.local_addr();
    let mut answer = [0; 20];
    let got = conn.recv(answer.len());
    answer.copy_from_slice(&got);
    assert!(String::from_utf8_lossy(&answer).starts_with(&balancer.ip().to_string()));
    let client = fresh_client_v4();
    assert_eq!(exec.report_for(&header_for(client)), [client; 2]);
}

/// Listeners on other ports are not supervised: a plain connection, and the balancer's address.
#[test]
fn other_ports_are_not_affected() {
    let exec = NotifyRig::start_variant("block", "4", &["--ports=9999"]);
    let conn = Conn::connect(&exec.lab.balancer, LISTEN_V4);
    let balancer = conn.local_addr();
    assert_eq!(
        crate::harness::rig::exec_notify::recv_addresses(&conn),
        [balancer; 2]
    );
}

#[test]
fn go_program_sees_the_client_static_and_with_cgo() {
    for cgo in [false, true] {
        let program = compiled_go_server(cgo);
        // Without `--mode`: Go is recognised, also where it is dynamically linked.
        let program = program.to_str().expect("text");
        let exec = NotifyRig::start(&["--mode=auto", "-v"], &[program, "tcp", ":8443"]);
        exec.process.wait_line("that it is Go", |line| {
            line.contains("Go program").then_some(())
        });
        for client in [fresh_client_v4(), fresh_client_v6()] {
            let request = [&header_for(client)[..], b"GET / HTTP/1.0\r\n\r\n"].concat();
            let (answer, _) = exec.connect_and_send(&request).recv_to_end();
            let answer = String::from_utf8(answer).expect("text");
            let said = answer.lines().last().expect("a line");
            assert_eq!(said, format!("peer {client}"), "cgo: {cgo}");
        }
    }
}

/// Without any capability, `no_new_privs` replaces CAP_SYS_ADMIN, and the log names what no longer works.
#[test]
fn ordinary_user_can_supervise() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let copy = copy_executable(&lab.server, &scratch);
    let server = scratch.path_text("server");
    let built = crate::harness::rig::exec_notify::compiled_accept_server();
    lab.server
        .run("cp", &[built.to_str().expect("text"), &server]);
    let ordinary = [AS_NOBODY, NO_CAPABILITIES].concat();
    let args = [
        "exec",
        "--trust=10.81.0.0/24",
        "-v",
        "--",
        &server,
        "--accept=threads",
    ];
    let mut process =
        Process::start_through(&lab.server, &ordinary, &copy, &args).wait_listening(&[LISTEN_V4]);
    for client in [fresh_client_v4(), fresh_client_v4()] {
        let conn = Conn::connect_and_send(&lab.balancer, LISTEN_V4, &header_for(client));
        assert_eq!(
            crate::harness::rig::exec_notify::recv_addresses(&conn),
            [client; 2]
        );
    }
    process.wait_line("what does not work any more", |line| {
        line.contains("no_new_privs").then_some(())
    });
    // Also without any privilege, the kernel ends the program.
    let network = network_of(&process.pid().to_string()).expect("a network");
    kill_at_once(["peername-guard", "peername-notify"].map(|name| wait_helper_pid(name, &network)));
    let status = process.wait_exit(WAIT_LIMIT).expect("its end");
    assert_eq!(status.signal(), Some(9), "{status:?}");
}

/// The program's arguments, exit code, signals and parent do not change.
#[test]
fn program_keeps_its_process() {
    let lab = Lab::new();
    let run = |program: &[&str]| {
        let args = [&["exec", "--mode=notify", "--trust=any", "--"], program].concat();
        crate::harness::peername::Peername::run(&lab.server, &args)
    };
    assert_eq!(run(&["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(run(&["/nonexistent"]).status.code(), Some(127));
    assert_eq!(run(&["/etc/passwd"]).status.code(), Some(126));
    let output = run(&["sh", "-c", "echo $1 $PPID; kill -9 $$", "sh", "a b"]);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("a b "));
    use std::os::unix::process::ExitStatusExt;
    // timeout(1), which stands between, dies of the same signal.
    assert!(output.status.signal() == Some(9) || output.status.code() == Some(137));
}

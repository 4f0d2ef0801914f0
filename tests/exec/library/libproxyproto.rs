//! The library under the name `libproxyproto.so`, as users of that project have it: LD_PRELOAD and
//! LIBPROXYPROTO_*, no launcher.

use std::net::SocketAddr;
use std::os::unix::fs::symlink;

use crate::exec::load::churn::assert_churn;
use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::header_bytes;
use crate::harness::lab::{Lab, Process, Scratch, wait_until};
use crate::harness::rig::exec::{Libc, ServerRig, built_library, compiled_server, v1, v2};

/// Starts `server.c` with these variables.
fn start_server(variables: &[&str], server_args: &str) -> (ServerRig, Scratch) {
    start_server_through(variables, &[], server_args)
}

/// Starts `server.c` with these variables through other programs.
fn start_server_through(
    variables: &[&str],
    through: &[&str],
    server_args: &str,
) -> (ServerRig, Scratch) {
    let (lab, scratch) = (Lab::without_routes(), Scratch::new());
    symlink(built_library(), scratch.path("libproxyproto.so")).expect("a link");
    let preload = format!("LD_PRELOAD={}", scratch.path_text("libproxyproto.so"));
    let program = compiled_server(Libc::Glibc);
    let words = [&["env", &preload], variables, through, &[&program]].concat();
    let words: Vec<&str> = words.into_iter().chain(server_args.split(' ')).collect();
    let process = Process::start_in_pid_namespace(&lab.server, words[0], &words[1..]);
    let process = process.wait_listening(&[LISTEN_V4]);
    (ServerRig::from_process(process, lab), scratch)
}

#[test]
fn server_sees_the_client() {
    for server_args in [
        "--accept=block --brief",
        "--accept=edge --brief",
        "--accept=fork --brief",
    ] {
        let (served, _scratch) = start_server(&[], server_args);
        for header in [v1, v2] {
            let client = fresh_client_v4();
            served.assert_report(&served.report_for(&header(client)), client);
        }
        let conn = served.connect_and_send(b"no header");
        served.assert_sees(&conn, conn.local_addr());
    }
}

/// As in libproxyproto, the variable has an effect if it is set, whatever its value.
#[test]
fn header_can_be_required() {
    let must = "LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER=0";
    let (served, _scratch) = start_server(&[must], "--accept=level --brief");
    served
        .connect_and_send(b"GET / HTTP/1.0\r\n\r\n")
        .wait_reset();
    served.assert_serves();
}

/// Without the library a child with an empty environment would see the balancer as its client, and accept without a header.
#[test]
fn library_is_propagated_through_exec() {
    let must = "LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER=1";
    let (served, _scratch) =
        start_server_through(&[must], &["env", "-i"], "--accept=level --brief");
    served.assert_serves();
    served.connect_and_send(b"no header").wait_reset();
}

/// As in libproxyproto, any peer that reaches the port may name any client.
#[test]
fn every_peer_is_trusted() {
    let (served, _scratch) = start_server(&[], "--accept=level --brief");
    for ip in ["127.0.0.1", "0.0.0.0", "240.0.0.1"] {
        let client = SocketAddr::new(ip.parse().expect("an address"), 40_010);
        served.assert_report(&served.report_for(&v2(client)), client);
    }
}

/// As in libproxyproto, a header of a version that `LIBPROXYPROTO_VERSION` excludes is removed, and the server sees the peer's
/// address.
#[test]
fn header_of_a_disabled_version_is_stripped() {
    let (text, binary) = (v1(fresh_client_v4()), v2(fresh_client_v4()));
    for (version, believed, ignored) in [("1", &text, &binary), ("2", &binary, &text)] {
        let variable = format!("LIBPROXYPROTO_VERSION={version}");
        let (served, _scratch) = start_server(&[&variable], "--accept=level --brief");
        let conn = served.connect_and_send(&[&ignored[..], b"hi"].concat());
        served.assert_sees(&conn, conn.local_addr());
        assert!(served.report_for(believed).contains("accept 198.51.100.7:"));
    }
}

/// The wording is libproxyproto's. Without the variable the library prints nothing.
#[test]
fn debug_variable_prints_both_addresses() {
    let must = "LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER=1";
    for debug in ["LIBPROXYPROTO_DEBUG=", "NOTHING="] {
        let (served, _scratch) = start_server(&[debug, must], "--accept=level --brief");
        let client = fresh_client_v4();
        let conn = served.connect_and_send(&[&v2(client)[..], b"hi"].concat());
        served.assert_sees(&conn, client);
        served.connect_and_send(b"no header").wait_closed();
        let expected = format!(
            "accepted connection\n*** orig addr={}\n*** proxied addr={client}\naccepted connection\n\
             error: not proxy protocol\ndropping connection\n",
            conn.local_addr()
        );
        if debug == "NOTHING=" {
            assert_eq!(served.process.log(), "");
        } else {
            wait_until("both addresses", || {
                served.process.log().trim() == expected.trim()
            });
        }
    }
}

/// Without a launcher there is no header waiter, so accept(2) itself waits a moment for a slow header.
#[test]
fn accept_waits_briefly_for_a_slow_header() {
    let (served, _scratch) = start_server(&[], "--accept=block --brief");
    let client = fresh_client_v4();
    let header = header_bytes::v2(client, LISTEN_V4, &[]);
    let conn = served.connect_and_send(&header[..20]);
    conn.send(&header[20..]);
    conn.send(b"hi");
    served.assert_sees(&conn, client);
    served.connect_and_send(&header[..20]).wait_reset();
    // A silent client may be waiting for the server to speak.
    let silent = Conn::connect(&served.lab.balancer, LISTEN_V4);
    std::thread::sleep(std::time::Duration::from_millis(400));
    silent.send(b"hi");
    served.assert_sees(&silent, silent.local_addr());
}

/// A server gets more connections, one after another, than the table's 65536 slots, and sees each client.
#[test]
fn slots_of_closed_connections_are_reused() {
    let (served, _scratch) = start_server(&[], "--accept=edge --brief");
    assert_churn(&served, 80_000);
}

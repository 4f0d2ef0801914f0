//! Headers: the clients that they name, and what happens to connections without a header.

mod senders;
mod sources;

use std::net::SocketAddr;
use std::time::Duration;

use crate::harness::addr::{FRONT_V4, LISTEN_V4, LISTEN_V6, fresh_client_v4, fresh_client_v6};
use crate::harness::conn::{Conn, End};
use crate::harness::header_bytes;
use crate::harness::lab::{assert_within, python};
use crate::harness::rig::exec::{MODES, ProgramRig, ServerRig, mapped_ipv6, pseudo_ipv4, v1, v2};

#[test]
fn headers_of_every_version_and_family_name_the_client() {
    for mode in MODES {
        let served = ServerRig::static_under_notify(mode, "--accept=level", &[]);
        let client = fresh_client_v4();
        let fields = [
            header_bytes::tlv(header_bytes::NOOP, &[b'x'; 297]),
            header_bytes::tlv(0xe0, &[7; 300]),
        ];
        for header in [v1(client)]
            .into_iter()
            .chain(fields.map(|field| header_bytes::v2(client, FRONT_V4, &field)))
        {
            served.assert_report(&served.report_for(&header), client);
        }
        let client = fresh_client_v6();
        let std::net::IpAddr::V6(ip) = client.ip() else {
            unreachable!("an IPv6 address")
        };
        // Never the balancer's address, which the server may trust.
        let pseudo_address = (pseudo_ipv4(ip), client.port()).into();
        for header in [v1(client), v2(client)] {
            served.assert_report(&served.report_for(&header), pseudo_address);
        }
    }
}

#[test]
fn headers_work_on_an_ipv6_listener() {
    for mode in MODES {
        let served = ServerRig::static_under_notify(mode, "--accept=level --family=6", &[]);
        for client in [fresh_client_v4(), fresh_client_v6()] {
            for listener in [LISTEN_V4, LISTEN_V6] {
                let bytes = [&v2(client)[..], b"hi"].concat();
                let conn = Conn::connect_and_send(&served.lab.balancer, listener, &bytes);
                served.assert_sees(&conn, mapped_ipv6(client));
            }
        }
    }
}

#[test]
fn header_without_a_client_leaves_the_balancers_address() {
    for mode in MODES {
        let served = ServerRig::static_under_notify(mode, "--accept=edge", &[]);
        for header in [
            b"PROXY UNKNOWN\r\n".to_vec(),
            header_bytes::raw(header_bytes::LOCAL, header_bytes::UNSPEC, &[]),
            header_bytes::nlb_health_check(),
        ] {
            let conn = served.connect_and_send(&[&header[..], b"hi"].concat());
            served.assert_sees(&conn, conn.local_addr());
        }
    }
}

/// Headers that deviate from the specification, but are unambiguous, are accepted as by `proxy`, unless `--strict-header` is
/// given. With `--dst`, a header whose destination is of another family than the client is accepted, too.
#[test]
fn unambiguous_deviations_are_served() {
    for mode in MODES {
        let client = fresh_client_v6();
        let (ip, port) = (client.ip(), client.port());
        let port_zero = SocketAddr::new(fresh_client_v4().ip(), 0);
        let lines = [
            (format!("PROXY TCP6 {ip} 10.0.0.2 {port} 2222\r\n"), client),
            (format!("PROXY TCP4 {ip} {ip} {port} 443\r\n"), client),
            (format!("PROXY TCP6 {ip} {ip} {port} 443 \r\n"), client),
            (String::from_utf8(v1(port_zero)).expect("text"), port_zero),
        ];
        let served = ServerRig::with_mode(mode, "--accept=level --family=6", &["--dst"]);
        for (line, client) in &lines {
            served.assert_report(&served.report_for(line.as_bytes()), mapped_ipv6(*client));
        }
        let strict = ServerRig::with_mode(mode, "--accept=level", &["--strict-header"]);
        for (line, _) in &lines {
            let conn = strict.connect_and_send(line.as_bytes());
            assert_eq!(conn.wait_closed().0, End::Reset, "{line}");
        }
        strict.process.wait_logged("--strict-header");
        strict.assert_serves();
    }
}

/// The header of a relayed connection that does not name the client's address is refused, also where headers are optional.
/// `--without-client refuse` refuses balancers' own connections, too.
#[test]
fn header_without_a_client_is_refused_by_the_header_policy() {
    for mode in MODES {
        let optional = ["--header=optional"];
        let served = ServerRig::with_mode(mode, "--accept=level", &optional);
        for (what, header) in header_bytes::without_address() {
            let conn = served.connect_and_send(&[&header[..], b"hi"].concat());
            assert_eq!(conn.wait_closed().0, End::Reset, "{mode} {what}");
        }
        let refuse = ["--without-client=refuse"];
        let served = ServerRig::with_mode(mode, "--accept=level", &refuse);
        for (what, header) in header_bytes::without_client() {
            let conn = served.connect_and_send(&[&header[..], b"hi"].concat());
            assert_eq!(conn.wait_closed().0, End::Reset, "{mode} {what}");
        }
        served.assert_serves();
    }
}

#[test]
fn connection_without_a_header_is_reset() {
    for mode in MODES {
        let served = ServerRig::static_under_notify(mode, "--accept=level", &[]);
        for bytes in [
            &b"GET / HTTP/1.0\r\n\r\n"[..],
            b"PROXY TCP5 ",
            b"\r\n\r\n\0\r\nQUIX",
            b"PROXY TCP4 x\r\n",
            b"\r\n\r\n\0\r\nQUIT\n!",
        ] {
            let (end, _) = served.connect_and_send(bytes).wait_closed();
            assert_eq!(end, End::Reset);
        }
        served.assert_serves();
    }
}

#[test]
fn incomplete_header_times_out() {
    for mode in MODES {
        for server_args in ["--accept=block", "--accept=level"] {
            let served =
                ServerRig::static_under_notify(mode, server_args, &["--header-timeout=300ms"]);
            for start in [&b""[..], b"PROXY TCP4 1"] {
                let (end, after) = served.connect_and_send(start).wait_closed();
                assert_eq!(end, End::Reset, "{mode} {server_args}");
                // The kernel shows a silent connection only after a second (deferred accept).
                assert!(
                    after >= Duration::from_millis(250),
                    "{server_args}: {after:?}"
                );
            }
            served.assert_serves();
        }
    }
}

/// The header timeout is measured from the handshake. It includes the time in which the kernel waits for the first byte
/// (deferred accept), and the time in which the header waiter waits for the header.
#[test]
fn silent_client_has_the_same_timeout() {
    for mode in MODES {
        let served = ServerRig::with_mode(mode, "--accept=block", &["--header-timeout=4s"]);
        assert_within(3, Duration::from_millis(4500), || {
            let silent = Conn::connect(&served.lab.balancer, LISTEN_V4);
            let (end, after) = silent.wait_closed();
            assert_eq!(end, End::Reset);
            assert!(after >= Duration::from_millis(3500), "{mode}: {after:?}");
            after
        });
    }
}

/// A peer that is not trusted gets a reset, although it sends a header.
#[test]
fn only_trusted_peers_may_send_headers() {
    for mode in MODES {
        let served =
            ServerRig::static_under_notify(mode, "--accept=block", &["--trust=10.81.0.0/24"]);
        // The server's own host, over loopback.
        let loopback = SocketAddr::from(([127, 0, 0, 1], LISTEN_V4.port()));
        Conn::assert_reset(&served.lab.server, loopback, &v2(fresh_client_v4()));
        served.assert_serves();
        let served =
            ServerRig::static_under_notify(mode, "--accept=level", &["--trust=192.0.2.0/24"]);
        Conn::assert_reset(&served.lab.balancer, LISTEN_V4, &v2(fresh_client_v4()));
    }
}

/// Where headers are optional, connections without one pass unchanged. The header of a peer that is not trusted is passed on as
/// data, and does not name the client.
#[test]
fn optional_headers_pass_plain_connections() {
    for mode in MODES {
        let served = ServerRig::static_under_notify(mode, "--accept=level", &["--header=optional"]);
        let conn = served.connect_and_send(b"GET / HTTP/1.0\r\n\r\n");
        served.assert_sees(&conn, conn.local_addr());
        served.assert_serves();
        let served = ServerRig::static_under_notify(
            mode,
            "--accept=level",
            &["--header=optional", "--trust=192.0.2.0/24"],
        );
        let conn = served.connect_and_send(&[&v2(fresh_client_v4())[..], b"hi"].concat());
        served.assert_sees(&conn, conn.local_addr());
    }
}

#[test]
fn other_ports_are_not_affected() {
    for mode in MODES {
        let served =
            ServerRig::static_under_notify(mode, "--accept=level", &["--ports=1-8442,8444"]);
        let conn = served.connect_and_send(&[&v2(fresh_client_v4())[..], b"hi"].concat());
        served.assert_sees(&conn, conn.local_addr());
    }
}

/// A socket that listens again may have another port: shutdown(2) releases a port that the kernel chose.
#[test]
fn listener_may_move_to_another_port() {
    let script = include_str!("headers/moving_listener.py");
    for mode in MODES {
        let ports = ["--ports=1-8442,8444-65535"];
        let program = ProgramRig::with_mode(mode, &ports, &python(script));
        program.process.wait_printed("refused");
        let conn = Conn::connect(&program.lab.balancer, LISTEN_V4);
        let output = conn.recv_text_to_end();
        let expected = format!("{} {}\n", conn.local_addr().ip(), conn.local_addr().port());
        assert_eq!(output, expected, "{mode}");
    }
}

/// With `--dst` getsockname(2) returns the header's destination.
#[test]
fn dst_option_shows_the_headers_destination() {
    let script = r"import socket
listener = socket.create_server(('10.81.0.1', 8443))
while True:
    conn, _ = listener.accept()
    conn.sendall(b'%s %d\n' % (conn.getsockname()[0].encode(), conn.getsockname()[1]))
    conn.close()";
    for mode in MODES {
        for (options, shown) in [(&["--dst"][..], FRONT_V4), (&[], LISTEN_V4)] {
            let program = ProgramRig::with_mode(mode, options, &python(script));
            let conn =
                Conn::connect_and_send(&program.lab.balancer, LISTEN_V4, &v2(fresh_client_v4()));
            let output = conn.recv_text_to_end();
            let expected = format!("{} {}\n", shown.ip(), shown.port());
            assert_eq!(output, expected, "{mode}");
        }
    }
}

/// The header is longer than the part that the library reads by itself.
#[test]
fn header_of_many_kilobytes_is_read() {
    for mode in MODES {
        let served = ServerRig::static_under_notify(mode, "--accept=edge", &["--max-header=65551"]);
        let client = fresh_client_v4();
        for size in [4000, 5000, 60_000] {
            let fields = header_bytes::tlv(header_bytes::NOOP, &vec![b'x'; size]);
            let header = header_bytes::v2(client, LISTEN_V4, &fields);
            served.assert_report(&served.report_for(&header), client);
        }
        let served = ServerRig::static_under_notify(mode, "--accept=edge", &[]);
        let fields = header_bytes::tlv(header_bytes::NOOP, &[b'x'; 5000]);
        let conn = served.connect_and_send(&header_bytes::v2(client, LISTEN_V4, &fields));
        conn.wait_reset();
    }
}

/// After a reset the kernel still returns the local address, and no peer. So do the calls of a program under `exec`.
#[test]
fn addresses_after_a_reset_are_those_that_the_kernel_has() {
    let script = r"import errno, socket
conn, _ = socket.create_server(('10.81.0.1', 8443)).accept()
conn.sendall(b'accepted')
try: conn.recv(1)
except ConnectionResetError: pass
try: conn.getpeername()
except OSError as error: print(errno.errorcode[error.errno], *conn.getsockname())";
    for mode in MODES {
        let program = ProgramRig::with_mode(mode, &["--dst"], &python(script));
        let conn = Conn::connect_and_send(&program.lab.balancer, LISTEN_V4, &v2(fresh_client_v4()));
        conn.recv_text_until(|text| text == "accepted");
        conn.reset();
        let seen = format!("ENOTCONN {} {}", FRONT_V4.ip(), FRONT_V4.port());
        program.process.wait_printed(&seen);
    }
}

//! The library under the name `libproxyproto_connect.so`, as users of that project have it: LD_PRELOAD and
//! LIBPROXYPROTO_*, no launcher.

use std::os::unix::fs::symlink;
use std::process::Output;

use crate::harness::addr::{LISTEN_V4, LISTEN_V6, fresh_client_v4};
use crate::harness::backend::Backend;
use crate::harness::lab::{
    Host, Lab, Scratch, assert_succeeds, lossy_text, stderr_text, stdout_text,
};
use crate::harness::peername::Peername;
use crate::harness::rig::exec::{ServerRig, built_connect_library};

const NETCAT: &[&str] = &["nc.openbsd", "-N", "10.81.0.1", "8443"];

fn run(host: &Host, variables: &[&str], program: &[&str]) -> Output {
    let scratch = Scratch::new();
    let library = scratch.path("libproxyproto_connect.so");
    symlink(built_connect_library(), &library).expect("a link");
    let preload = format!("LD_PRELOAD={}", library.display());
    let words = [&["env", &preload], variables, program].concat();
    Peername::run_with_input(host, &words[..1], &words[1..], "hello")
}

/// Runs a program, and returns what its connection sends to the backend.
fn received_bytes(lab: &Lab, backend: &Backend, variables: &[&str], program: &[&str]) -> String {
    std::thread::scope(|scope| {
        let client = scope.spawn(|| run(&lab.balancer, variables, program));
        let (received, _) = backend.accept().recv_to_end();
        assert_succeeds(&client.join().expect("the client"));
        lossy_text(&received)
    })
}

#[test]
fn server_sees_the_client() {
    let served = ServerRig::new("--accept=level --brief", &["--source-policy=allow-local"]);
    let client = fresh_client_v4();
    let (ip, port) = (
        format!("LIBPROXYPROTO_ADDR={}", client.ip()),
        format!("LIBPROXYPROTO_PORT={}", client.port()),
    );
    for variable in [
        "LIBPROXYPROTO_DEBUG=1",
        "LIBPROXYPROTO_VERSION=1",
        "LIBPROXYPROTO_VERSION=2",
    ] {
        let output = run(&served.lab.balancer, &[&ip, &port, variable], NETCAT);
        served.assert_report(&stdout_text(&output), client);
        let shown = if variable == "LIBPROXYPROTO_DEBUG=1" {
            "connected\n"
        } else {
            ""
        };
        assert_eq!(stderr_text(&output), shown);
    }
    let output = run(&served.lab.balancer, &[], NETCAT);
    let default = "127.0.0.1:8080".parse().expect("an endpoint");
    served.assert_report(&stdout_text(&output), default);
}

/// `LIBPROXYPROTO_VERSION=0` means no header. If source and connection are of different families, the header is of IPv6, where
/// libproxyproto would send none.
#[test]
fn header_is_of_the_version_and_family_that_the_variables_name() {
    let lab = Lab::without_routes();
    let [four, six] = [LISTEN_V4, LISTEN_V6].map(|to| Backend::listen(&lab.server, to));
    let sent = |variables: &[&str], program: &[&str]| {
        let backend = if program == NETCAT { &four } else { &six };
        received_bytes(&lab, backend, variables, program)
    };
    assert_eq!(sent(&["LIBPROXYPROTO_VERSION=0"], NETCAT), "hello");
    let version_1 = "LIBPROXYPROTO_VERSION=1";
    let ipv6_source = "LIBPROXYPROTO_ADDR=2001:db8::9";
    assert_eq!(
        sent(&[version_1], NETCAT),
        "PROXY TCP4 127.0.0.1 10.81.0.1 8080 8443\r\nhello"
    );
    assert_eq!(
        sent(&[version_1, ipv6_source], NETCAT),
        "PROXY TCP6 2001:db8::9 ::ffff:a51:1 8080 8443\r\nhello"
    );
    assert_eq!(
        sent(
            &[version_1, ipv6_source],
            &["nc.openbsd", "-N", "fd81::1", "8443"]
        ),
        "PROXY TCP6 2001:db8::9 fd81::1 8080 8443\r\nhello"
    );
}

/// A program with invalid header settings does not start. The server's library takes `LIBPROXYPROTO_VERSION=3` as versions 1
/// and 2; the client's refuses it, as libproxyproto does.
#[test]
fn invalid_variables_end_the_program() {
    let host = Host::new();
    for (variables, code) in [
        (&["LIBPROXYPROTO_VERSION=3"][..], 111),
        (&["LIBPROXYPROTO_VERSION=-1"], 111),
        (&["LIBPROXYPROTO_ADDR=example.org"], 111),
        (&["PEERNAME_SOURCE=192.0.2.1"], 125),
        (
            &["PEERNAME_SOURCE=192.0.2.1:1", "PEERNAME_PROXY_VERSION=3"],
            125,
        ),
        (&["PEERNAME_SOURCE=192.0.2.1:1", "PEERNAME_PORTS=http"], 125),
        // No port: no connection would have a header.
        (
            &["PEERNAME_SOURCE=192.0.2.1:1", "PEERNAME_PORTS=8010-8000"],
            125,
        ),
        (&[], 0),
    ] {
        let output = run(&host, variables, &["true"]);
        assert_eq!(output.status.code(), Some(code), "{variables:?} {output:?}");
    }
}

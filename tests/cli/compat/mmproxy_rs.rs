//! mmproxy-rs: its README, options, exit code and `RUST_LOG`.

use std::net::SocketAddr;
use std::time::Duration;

use crate::harness::addr::{CLIENT_V4, FRONT_V4, LISTEN_V4, fresh_client_v4, v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::Lab;
use crate::harness::rig::compat::{CompatRig, start_address_echo, wait_listening};

/// The README's example, behind the sender that it names: udppp.
#[test]
fn readme_example_behind_udppp_works() {
    let (rig, lab) = (CompatRig::new(), Lab::without_routes());
    let _server = start_address_echo(&lab.server, v4([127, 0, 0, 1], 8081));
    let proxy = rig.start(
        &lab.server,
        "address=10.81.0.1
         bind_port=8080
         upstream_port=8081
         sudo ip rule add from 127.0.0.1/8 iif lo table 123
         sudo ip route add local 0.0.0.0/0 dev lo table 123
         sudo mmproxy  -l $address:$bind_port -4 127.0.0.1:$upstream_port -p udp",
    );
    wait_listening(&proxy);
    let sender = rig.start(
        &lab.balancer,
        "./udppp -m 1 -b 203.0.113.1 -l 80 -h 10.81.0.1 -r 8080 -p",
    );
    wait_listening(&sender);
    let client = DatagramSocket::bind(&lab.client, SocketAddr::new(CLIENT_V4.ip(), 0));
    for text in ["one", "two"] {
        client.send(FRONT_V4, &[text.as_bytes()]);
        let me = client.socket().local_addr().expect("getsockname");
        let answer = format!("{} {} {text}", me.ip(), me.port());
        client.expect_datagram(answer.as_bytes(), FRONT_V4);
    }
}

/// mmproxy-rs's long options work, also in Go's form (`-4=`). A list may have an address without a prefix length.
#[test]
fn long_options_work() {
    let (rig, lab) = (CompatRig::new(), Lab::new());
    rig.0.write("subnets", "10.81.0.2\n192.0.2.0/24\n");
    let backend = Backend::listen(&lab.server, v4([127, 0, 0, 1], 9000));
    for line in [
        "mmproxy --listen-addr 10.81.0.1:8443 --ipv4 127.0.0.1:9000 --ipv6 [::1]:9000 \
         --allowed-subnets subnets --close-after 60 --listeners 2 --protocol TCP --mark 0",
        "mmproxy-rs -l 10.81.0.1:8443 -4 127.0.0.1:9000 -6 [::1]:9000 -a subnets -c 60 -p tcp -m 0",
        "mmproxy -l=10.81.0.1:8443 -4=127.0.0.1:9000 --allowed-subnets=subnets -mark 7",
    ] {
        let mut proxy = rig.start(&lab.server, line).wait_listening(&[LISTEN_V4]);
        let client = fresh_client_v4();
        let down = Conn::connect_and_send(
            &lab.balancer,
            LISTEN_V4,
            &header_bytes::v2(client, FRONT_V4, &[]),
        );
        let up = backend.accept_from(client);
        drop((down, up));
        proxy.wait_logged(&format!("client={client}"));
        proxy.signal(rustix::process::Signal::TERM);
        assert!(proxy.wait_exit(Duration::from_secs(5)).is_some());
    }
}

/// In mmproxy-rs errors exited with 0; here a start that fails never does.
#[test]
fn failed_start_exits_with_1() {
    let (rig, lab) = (CompatRig::new(), Lab::new());
    rig.0.write("bad", "10.0.0.0/8\nlb.example\n");
    for (options, text) in [
        ("-a bad", "bad, line 2: neither"),
        ("-l 192.0.2.77:1", "can't listen on"),
    ] {
        rig.assert_exits(&lab.server, &format!("mmproxy-rs {options}"), 1, text);
    }
}

/// `RUST_LOG` sets the log level.
#[test]
fn rust_log_sets_the_log_level() {
    let (rig, lab) = (CompatRig::new(), Lab::new());
    let proxy = rig
        .start(
            &lab.server,
            "env RUST_LOG=error mmproxy-rs -l 10.81.0.1:8443",
        )
        .wait_listening(&[LISTEN_V4]);
    Conn::connect_and_send(&lab.balancer, LISTEN_V4, b"no header\r\n").wait_closed();
    proxy.wait_logged("connections refused");
    // Only the throttled warning about refusals is logged, not a line for each.
    let log = proxy.log();
    assert!(
        !log.contains("listening") && !log.contains("connection ended"),
        "{log}"
    );
}

//! A listener on loopback to which a TPROXY rule redirects connections.

use std::fs;

use crate::harness::addr::{addr, fresh_client_v4, v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::header_bytes::v1;
use crate::harness::lab::{Lab, assert_contains};
use crate::harness::peername::{Peername, words};

/// On loopback no network can be congested and no peer can vanish, so congestion control and keepalive differ there. A
/// connection that a rule redirects to a loopback listener needs both.
#[test]
fn connection_redirected_to_loopback_is_tuned_as_remote() {
    let lab = Lab::new();
    // Loopback connections use reno. For the others, the first algorithm besides reno that this host allows.
    let allowed = fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
        .expect("the allowed algorithms");
    let remote = allowed
        .split_whitespace()
        .find(|name| *name != "reno")
        .unwrap_or("reno");
    lab.server.sysctl("net.ipv4.tcp_congestion_control", remote);
    let rules = "
        ip rule add fwmark 1 lookup 123
        iptables -t mangle -A PREROUTING -p tcp --dport 10000:20000 -j TPROXY \\
          --tproxy-mark 0x1/0x1 --on-port 25577 --on-ip 127.0.0.1";
    lab.server.run("sh", &["-ec", rules]);
    let backend = Backend::listen(&lab.server, v4([127, 0, 0, 1], 9000));
    for (args, host, to, algorithm, is_probed) in [
        (
            &["--listen-transparent"][..],
            &lab.balancer,
            "10.81.0.1:14321",
            remote,
            true,
        ),
        (&[], &lab.server, "127.0.0.1:25577", "reno", false),
    ] {
        let usual = words(
            "proxy --listen=127.0.0.1:25577 --target-v4=127.0.0.1:9000 --trust=10.81.0.0/24 \
             --trust=loopback",
        );
        let _proxy = Peername::start_listening(&lab.server, &[&usual, args].concat());
        let (to, client) = (addr(to), fresh_client_v4());
        let down = Conn::connect_and_send(host, to, &v1(client, to));
        let _up = backend.accept();
        let filter = format!("dport = :{}", down.local_addr().port());
        let socket = lab.server.run("ss", &["-tnoiH", &filter]);
        assert_contains(&socket, &[&format!(" {algorithm} ")]);
        assert_eq!(socket.contains("timer:(keepalive"), is_probed, "{socket}");
    }
}

//! A listener on loopback to which a TPROXY rule redirects connections.

use std::fs;

use crate::harness::addr::{addr, fresh_client_v4, v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::header_bytes::v1;
use crate::harness::lab::{Host, Lab, Scratch, assert_contains};
use crate::harness::peername::{Peername, words};
use crate::harness::programs::BECOME_ACTIVATED;
use crate::harness::rig::upgrade::UpgradeRig;

/// On loopback no network can be congested and no peer can vanish, so congestion control and keepalive differ there. A
/// connection that a rule redirects to a loopback listener needs both.
#[test]
fn connection_redirected_to_loopback_is_tuned_as_remote() {
    let rig = LoopbackRig::new();
    let redirected = Peername::start_listening(
        &rig.lab.server,
        &[&words(PROXY)[..], &["--listen-transparent"]].concat(),
    );
    rig.assert_tuned_as_remote();
    drop(redirected);
    let _proxy = Peername::start_listening(&rig.lab.server, &words(PROXY));
    rig.assert_tuned(&rig.lab.server, "127.0.0.1:25577", "reno", false);
}

/// A service manager's socket is tuned by each process that takes it over.
#[test]
fn connection_redirected_to_an_activated_socket_is_tuned_as_remote() {
    let (rig, scratch) = (LoopbackRig::new(), Scratch::new());
    let script = BECOME_ACTIVATED.replace("'10.81.0.1', 8443", "'127.0.0.1', 25577");
    let script = scratch.write("activate.py", &script);
    let options = ["--listen-transparent", "--protocol=both"];
    let args = [&words(PROXY)[..], &options].concat();
    let server = &rig.lab.server;
    let mut proxy = UpgradeRig::start_with(server, &["python3", &script], &args);
    rig.assert_tuned_as_remote();
    proxy.upgrade(server).expect("it upgrades");
    proxy.wait_drained();
    rig.assert_tuned_as_remote();
}

/// A rule that redirects to [`PROXY`], and its backend.
struct LoopbackRig {
    backend: Backend,
    lab: Lab,
    /// The congestion control of connections over a network.
    remote: String,
}

impl LoopbackRig {
    fn new() -> Self {
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
        Self {
            backend: Backend::listen(&lab.server, v4([127, 0, 0, 1], 9000)),
            lab,
            remote: remote.to_owned(),
        }
    }

    #[track_caller]
    fn assert_tuned_as_remote(&self) {
        self.assert_tuned(&self.lab.balancer, "10.81.0.1:14321", &self.remote, true);
    }

    /// Asserts the congestion control and the keepalive of a connection from this host.
    #[track_caller]
    fn assert_tuned(&self, host: &Host, to: &str, algorithm: &str, is_probed: bool) {
        let (to, client) = (addr(to), fresh_client_v4());
        let down = Conn::connect_and_send(host, to, &v1(client, to));
        let _up = self.backend.accept();
        let filter = format!("dport = :{}", down.local_addr().port());
        let socket = self.lab.server.run("ss", &["-tnoiH", &filter]);
        assert_contains(&socket, &[&format!(" {algorithm} ")]);
        assert_eq!(socket.contains("timer:(keepalive"), is_probed, "{socket}");
    }
}

const PROXY: &str = "proxy --listen=127.0.0.1:25577 --target-v4=127.0.0.1:9000 --trust=10.81.0.0/24 \
                     --trust=loopback";

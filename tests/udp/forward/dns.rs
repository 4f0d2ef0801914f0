//! A real name server without PROXY support, behind a real balancer with it: its log names the true client.

use std::net::SocketAddr;

use crate::harness::addr::{CLIENT_V4, CLIENT_V6, FRONT_V4, FRONT_V6, LISTEN_V4};
use crate::harness::lab::{Lab, Process, Scratch, assert_contains};
use crate::harness::peername::Peername;
use crate::harness::programs::sender::NginxStream;
use crate::harness::rig::udp::{DIALECTS, start_forward};

/// dig asks dnsdist, which puts a PROXY v2 header on every datagram, and unbound answers.
#[test]
fn unbound_logs_the_client_behind_dnsdist() {
    let lab = Lab::new();
    let scratch = Scratch::new();
    let unbound = start_unbound(&lab, &scratch);
    let _proxy = Peername::start_listening(&lab.server, PROXY);
    let _dnsdist = start_dnsdist(&lab, &scratch);
    assert_clients_logged(&lab, &unbound);
}

/// The same behind nginx, which puts a header of version 1 on the first datagram of a client, and none on the next ones.
#[test]
fn unbound_logs_the_client_behind_nginx() {
    let lab = Lab::new();
    let scratch = Scratch::new();
    let unbound = start_unbound(&lab, &scratch);
    let first = ["--udp-header=first", "--log-format=json", "-v"];
    let proxy = Peername::start_listening(&lab.server, &[PROXY, &first].concat());
    let _nginx = NginxStream::start_listening(&lab, LISTEN_V4);
    assert_clients_logged(&lab, &unbound);
    assert!(
        !proxy.log().contains("datagrams refused"),
        "{}",
        proxy.log()
    );
}

/// The same with `forward` as the sender, in every dialect.
#[test]
fn unbound_logs_the_client_behind_forward() {
    for (sender, receiver) in DIALECTS {
        let lab = Lab::new();
        let scratch = Scratch::new();
        let unbound = start_unbound(&lab, &scratch);
        let _proxy = Peername::start_listening(&lab.server, &[PROXY, &[receiver]].concat());
        let _forward = start_forward(&lab, &[sender]);
        assert_clients_logged(&lab, &unbound);
    }
}

/// One proxy serves a name server over TCP and UDP.
#[test]
fn one_process_serves_tcp_and_udp() {
    let lab = Lab::new();
    let scratch = Scratch::new();
    let unbound = start_unbound(&lab, &scratch);
    let proxy: Vec<&str> = PROXY
        .iter()
        .map(|arg| match *arg {
            "--protocol=udp" => "--protocol=both",
            arg => arg,
        })
        .collect();
    let _proxy = Peername::start_listening(&lab.server, &proxy);
    let _dnsdist = start_dnsdist(&lab, &scratch);
    assert_client_logged(&lab, &unbound, CLIENT_V4, FRONT_V4);
    let answer = dig(&lab, CLIENT_V4, FRONT_V4, "tcp.example", "+tcp");
    assert_contains(&answer, &["192.0.2.53"]);
    unbound.wait_logged(&format!("info: {} tcp.example.", CLIENT_V4.ip()));
}

fn assert_clients_logged(lab: &Lab, unbound: &Process) {
    assert_client_logged(lab, unbound, CLIENT_V4, FRONT_V4);
    assert_client_logged(lab, unbound, CLIENT_V6, FRONT_V6);
}

fn assert_client_logged(lab: &Lab, unbound: &Process, client: SocketAddr, front: SocketAddr) {
    let name = if client.is_ipv4() {
        "v4.example"
    } else {
        "v6.example"
    };
    for _ in 0..3 {
        let answer = dig(lab, client, front, name, "+notcp");
        assert_contains(&answer, &["192.0.2.53"]);
    }
    unbound.wait_logged(&format!("info: {} {name}. A IN", client.ip()));
}

fn dig(lab: &Lab, client: SocketAddr, front: SocketAddr, name: &str, how: &str) -> String {
    let from = format!("{}#{}", client.ip(), client.port());
    let server = format!("@{}", front.ip());
    let port = front.port().to_string();
    let args = [
        "+short", "+tries=1", "+time=5", how, "-b", &from, "-p", &port, &server, name,
    ];
    lab.client.run("dig", &args)
}

/// Starts unbound, which answers every name under `example` with 192.0.2.53 and logs its clients.
fn start_unbound(lab: &Lab, scratch: &Scratch) -> Process {
    let config = scratch.write("unbound.conf", UNBOUND);
    let process = Process::start(&lab.server, "unbound", &["-d", "-d", "-c", &config]);
    process.wait_listening(
        &["127.0.0.1:9053", "[::1]:9053"].map(|addr| addr.parse().expect("an address")),
    )
}

fn start_dnsdist(lab: &Lab, scratch: &Scratch) -> Process {
    let config = scratch.write("dnsdist.conf", DNSDIST);
    let args = ["--supervised", "--disable-syslog", "-C", &config];
    Process::start(&lab.balancer, "dnsdist", &args).wait_listening(&[FRONT_V4, FRONT_V6])
}

const PROXY: &[&str] = &[
    "proxy",
    "--protocol=udp",
    "--listen=10.81.0.1:8443",
    "--target-v4=127.0.0.1:9053",
    "--target-v6=[::1]:9053",
    "--trust=10.81.0.0/24",
    "--workers=2",
];

const UNBOUND: &str = include_str!("dns/unbound.conf");

const DNSDIST: &str = "
setLocal('203.0.113.1:80')
addLocal('[2001:db8:9::1]:80')
setACL({'0.0.0.0/0', '::/0'})
newServer({address='10.81.0.1:8443', useProxyProtocol=true}):setUp()
";

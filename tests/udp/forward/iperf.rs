//! iperf on both ends of a chain of `forward` and `proxy`: it keeps its own account of whom it hears and
//! of what is lost on the way.

use std::net::SocketAddr;

use crate::harness::addr::{
    CLIENT_V4, CLIENT_V6, FRONT_V4, FRONT_V6, TARGET_V4, TARGET_V6, from_parts,
};
use crate::harness::lab::{Lab, Process};
use crate::harness::peername::Peername;
use crate::harness::rig::udp::start_forward;

/// The client sends, and its server hears it from its own address, all of it.
#[test]
fn a_client_that_sends() {
    for (client, front, target) in FAMILIES {
        let chain = Chain::new(target);
        chain.client(front, &[]);
        let heard = chain.report_of_server();
        assert_eq!((heard.from, heard.to), (client, target), "{heard:?}");
        heard.is_without_loss();
    }
}

/// The client only asks, and the server sends to the address that it asked from.
#[test]
fn a_client_that_is_sent_to() {
    for (client, front, target) in FAMILIES {
        let chain = Chain::new(target);
        let heard = chain.client(front, &["--reverse"]);
        assert_eq!((heard.from, heard.to), (front, client), "{heard:?}");
        heard.is_without_loss();
        let sent = chain.report_of_server();
        assert_eq!((sent.from, sent.to), (target, client), "{sent:?}");
    }
}

/// iperf's server behind the proxy, and `forward` in front. Dropped top to bottom.
struct Chain {
    server: Process,
    _proxy: Peername,
    _forward: Peername,
    lab: Lab,
}

/// What iperf says of a transfer, on either end.
#[derive(Debug)]
struct Report {
    from: SocketAddr,
    to: SocketAddr,
    lost: i64,
    /// Datagrams; the sender does not say.
    total: i64,
    out_of_order: i64,
}

impl Chain {
    fn new(target: SocketAddr) -> Self {
        let lab = Lab::new();
        let server = iperf("--server --bind", target, &[]);
        let server: Vec<&str> = server.iter().map(String::as_str).collect();
        let server = Process::start(&lab.server, "iperf", &server).wait_bound(target);
        Self {
            server,
            _proxy: Peername::udp_proxy(&lab, &[], &[]),
            _forward: start_forward(&lab, "--udp-header=each"),
            lab,
        }
    }

    /// 20 Mbit/s for two seconds, to the end, in datagrams that have room for a header.
    fn client(&self, front: SocketAddr, mode: &[&str]) -> Report {
        let rate = ["--bandwidth=20M", "--time=2", "--len=1400"];
        let client = iperf("--client", front, &[&rate, mode].concat());
        let within = ["--signal=KILL", "20", "iperf"];
        let args: Vec<&str> = within
            .into_iter()
            .chain(client.iter().map(String::as_str))
            .collect();
        let said = self.lab.client.run("timeout", &args);
        Report::read(&said).unwrap_or_else(|| panic!("no report: {said}"))
    }

    fn report_of_server(&self) -> Report {
        self.server.wait_line("of the transfer", Report::read)
    }
}

/// The arguments of an iperf that reports as comma-separated values.
fn iperf(role: &str, addr: SocketAddr, more: &[&str]) -> Vec<String> {
    let family = if addr.is_ipv6() { "--ipv6_domain" } else { "" };
    let (ip, port) = (addr.ip(), addr.port());
    // As much buffer as it may have: it is not to lose what the proxy did not.
    let usual = format!("{role} {ip} --port {port} --udp --window 2M --reportstyle C {family}");
    let usual = usual.split_ascii_whitespace().map(str::to_owned);
    usual
        .chain(more.iter().map(|arg| (*arg).to_owned()))
        .collect()
}

impl Report {
    /// Time, two endpoints, number, interval, octets, bit/s, jitter, lost, total, per cent lost, out of
    /// order.
    fn read(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.trim().split(',').collect();
        let number = |at: usize| fields.get(at)?.parse().ok();
        Some(Self {
            from: from_parts(fields.get(1)?, fields.get(2)?)?,
            to: from_parts(fields.get(3)?, fields.get(4)?)?,
            lost: number(10)?,
            total: number(11)?,
            out_of_order: number(13)?,
        })
    }

    #[track_caller]
    fn is_without_loss(&self) {
        assert_eq!((self.lost, self.out_of_order), (0, 0), "{self:?}");
        // 20 Mbit/s make 3571 in two seconds, and iperf takes 20M for 20 * 2^20.
        assert!(self.total > 3000, "{self:?}");
    }
}

const FAMILIES: [(SocketAddr, SocketAddr, SocketAddr); 2] = [
    (CLIENT_V4, FRONT_V4, TARGET_V4),
    (CLIENT_V6, FRONT_V6, TARGET_V6),
];

//! iperf on both ends of a chain of `forward` and `proxy`: it counts independently which client it hears and
//! what is lost on the path.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::addr::{
    CLIENT_V4, CLIENT_V6, FRONT_V4, FRONT_V6, TARGET_V4, TARGET_V6, from_parts,
};
use crate::harness::lab::{Host, Lab, Process, assert_within};
use crate::harness::peername::Peername;
use crate::harness::rig::udp::start_forward;

/// The client sends; the server hears all of it, from the client's address.
#[test]
fn upload_loses_nothing() {
    for (client, front, target) in FAMILIES {
        let mut chain = Chain::new(target);
        chain.client(front, &[]);
        let heard = chain.report_of_server();
        assert_eq!((heard.from, heard.to), (client, target), "{heard:?}");
        chain.assert_accounts_for(&heard);
    }
}

/// The client only asks; the server sends to the address that it was asked from.
#[test]
fn download_loses_nothing() {
    for (client, front, target) in FAMILIES {
        let mut chain = Chain::new(target);
        let heard = chain.client(front, &["--reverse"]);
        assert_eq!((heard.from, heard.to), (front, client), "{heard:?}");
        chain.assert_accounts_for(&heard);
        let sent = chain.report_of_server();
        assert_eq!((sent.from, sent.to), (target, client), "{sent:?}");
    }
}

/// Replies wait in the session's socket while the process does not run. The kernel's default buffer would hold 50 ms of
/// this stream.
#[test]
fn replies_wait_while_the_process_does_not_run() {
    assert_within(5, Duration::ZERO, || {
        let mut chain = Chain::new(TARGET_V4);
        let heard = std::thread::scope(|scope| {
            let client = scope.spawn(|| chain.client(FRONT_V4, &["--reverse"]));
            for process in [&chain.proxy, &chain.forward] {
                std::thread::sleep(Duration::from_millis(500));
                process.signal(Signal::STOP);
                std::thread::sleep(Duration::from_millis(80));
                process.signal(Signal::CONT);
            }
            client.join().expect("the client")
        });
        // On a busy machine the pause may be far longer: one of the tries is to lose nothing.
        Duration::from_secs(chain.assert_accounts_for(&heard))
    });
}

/// iperf's server behind the proxy, and `forward` in front. Dropped top to bottom.
struct Chain {
    server: Process,
    proxy: Peername,
    forward: Peername,
    lab: Lab,
}

/// iperf's report of a transfer, on either end.
#[derive(Debug)]
struct Report {
    from: SocketAddr,
    to: SocketAddr,
    lost: i64,
    /// Datagrams; the sender does not report them.
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
            proxy: Peername::udp_proxy(&lab, &[], &[]),
            forward: start_forward(&lab, &["--udp-header=each"]),
            lab,
        }
    }

    /// Transfers 20 Mbit/s for two seconds, to the end, in datagrams that leave space for a header.
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

    /// Asserts that every lost datagram was dropped at a full receive buffer, and that `proxy` and `forward` count the
    /// drops at their own sockets. Returns the number of drops on their hosts. The client's drops are not included:
    /// with `--reverse`, its iperf has the kernel's default buffer.
    #[track_caller]
    fn assert_accounts_for(&mut self, heard: &Report) -> u64 {
        let overruns = |host: &Host| {
            let of = |file: &str, label: &str| value_of(&host.run("cat", &[file]), label);
            of("/proc/net/snmp", "RcvbufErrors") + of("/proc/net/snmp6", "Udp6RcvbufErrors")
        };
        let lab = &self.lab;
        let [client, balancer, server] = [&lab.client, &lab.balancer, &lab.server].map(overruns);
        assert_eq!(heard.lost, client + balancer + server, "{heard:?}");
        assert_eq!(counted(&mut self.forward), balancer, "{heard:?}");
        assert!(counted(&mut self.proxy) <= server, "{heard:?}");
        assert_eq!(heard.out_of_order, 0, "{heard:?}");
        // 20 Mbit/s make 3571 in two seconds, and iperf takes 20M for 20 * 2^20.
        assert!(heard.total > 3000, "{heard:?}");
        (balancer + server).unsigned_abs()
    }

    fn report_of_server(&self) -> Report {
        self.server.wait_line("of the transfer", Report::read)
    }
}

/// The arguments of an iperf that reports as comma-separated values.
fn iperf(role: &str, addr: SocketAddr, more: &[&str]) -> Vec<String> {
    let family = if addr.is_ipv6() { "--ipv6_domain" } else { "" };
    let (ip, port) = (addr.ip(), addr.port());
    // The largest buffer that the kernel allows: iperf must not lose datagrams that the proxy did not lose.
    let usual = format!("{role} {ip} --port {port} --udp --window 2M --reportstyle C {family}");
    let usual = usual.split_ascii_whitespace().map(str::to_owned);
    usual
        .chain(more.iter().map(|arg| (*arg).to_owned()))
        .collect()
}

impl Report {
    /// Parses time, two endpoints, number, interval, bytes, bit/s, jitter, lost, total, per cent lost, out of
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
}

/// The datagrams that a process has lost at full receive buffers, by the last line of its log.
fn counted(process: &mut Peername) -> i64 {
    let totals = process.stop();
    let dropped = totals["datagrams_dropped"].as_str().expect("a field");
    let full = dropped
        .split(' ')
        .find_map(|one| one.strip_prefix("receive_buffer_full="));
    full.map_or(0, |number| number.parse().expect("a number"))
}

/// A counter of /proc/net/snmp, with the names a line above the values, or of snmp6, with a line each.
fn value_of(text: &str, label: &str) -> i64 {
    let udp: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("Udp: "))
        .collect();
    let mut pairs = udp
        .first()
        .zip(udp.get(1))
        .into_iter()
        .flat_map(|(names, values)| names.split(' ').zip(values.split(' ')));
    let line = || {
        text.lines()
            .find_map(|line| line.strip_prefix(label)?.trim().parse().ok())
    };
    let value = pairs.find(|(name, _)| *name == label);
    value.map_or_else(
        || line().unwrap_or(0),
        |(_, value)| value.parse().expect("a number"),
    )
}

const FAMILIES: [(SocketAddr, SocketAddr, SocketAddr); 2] = [
    (CLIENT_V4, FRONT_V4, TARGET_V4),
    (CLIENT_V6, FRONT_V6, TARGET_V6),
];

//! iperf on both ends of a chain of `forward` and `proxy`. iperf itself reports the client's address and counts lost datagrams.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::addr::{
    CLIENT_V4, CLIENT_V6, FRONT_V4, FRONT_V6, TARGET_V4, TARGET_V6, from_parts,
};
use crate::harness::lab::{Host, Lab, Process};
use crate::harness::peername::Peername;
use crate::harness::rig::udp::start_forward;

/// The client sends; the server hears it from the client's address.
#[test]
fn each_datagram_that_an_upload_loses_is_counted() {
    for (client, front, target) in FAMILIES {
        let mut chain = Chain::new(target);
        chain.run_client(front, &[]);
        let heard = chain.wait_server_report();
        assert_eq!((heard.from, heard.to), (client, target), "{heard:?}");
        chain.assert_accounts_for(&heard);
    }
}

/// The client sends a request only; the server sends to the address that the request came from.
#[test]
fn each_datagram_that_a_download_loses_is_counted() {
    for (client, front, target) in FAMILIES {
        let mut chain = Chain::new(target);
        let heard = chain.run_client(front, &["--reverse"]);
        assert_eq!((heard.from, heard.to), (front, client), "{heard:?}");
        chain.assert_accounts_for(&heard);
        let sent = chain.wait_server_report();
        assert_eq!((sent.from, sent.to), (target, client), "{sent:?}");
    }
}

/// Replies wait in the session's socket while the process does not run. The kernel's default buffer would hold 50 ms of
/// this stream.
#[test]
fn replies_wait_while_the_process_does_not_run() {
    let lost_in_a_try = || {
        let mut chain = Chain::new(TARGET_V4);
        let heard = thread::scope(|scope| {
            let client = scope.spawn(|| chain.run_client(FRONT_V4, &["--reverse"]));
            for process in [&chain.proxy, &chain.forward] {
                thread::sleep(Duration::from_millis(500));
                process.signal(Signal::STOP);
                thread::sleep(Duration::from_millis(80));
                process.signal(Signal::CONT);
            }
            client.join().expect("the client")
        });
        chain.assert_accounts_for(&heard)
    };
    // On a busy machine the pause may be far longer, so it is enough that one of the tries loses nothing.
    let is_nothing_lost = (0..5).any(|_| lost_in_a_try() == 0);
    assert!(is_nothing_lost);
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
    /// Datagrams; -1 in the report of the sending side.
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

    /// Runs iperf's client, which transfers 20 Mbit/s for two seconds in datagrams that leave space for a header.
    fn run_client(&self, front: SocketAddr, mode: &[&str]) -> Report {
        let rate = ["--bandwidth=20M", "--time=2", "--len=1400"];
        let client = iperf("--client", front, &[&rate, mode].concat());
        let timeout = ["--signal=KILL", "20", "iperf"];
        let args: Vec<&str> = timeout
            .into_iter()
            .chain(client.iter().map(String::as_str))
            .collect();
        let output = self.lab.client.run("timeout", &args);
        Report::read(&output).unwrap_or_else(|| panic!("no report: {output}"))
    }

    /// Asserts that every lost datagram was dropped at a full receive buffer, and that `proxy` and `forward` count the
    /// drops at their own sockets. Returns the number of drops on their hosts. The client's drops are not included:
    /// with `--reverse`, its iperf has the kernel's default buffer.
    #[track_caller]
    fn assert_accounts_for(&mut self, heard: &Report) -> u64 {
        let lab = &self.lab;
        let [client, balancer, server] =
            [&lab.client, &lab.balancer, &lab.server].map(receive_buffer_errors);
        assert_eq!(heard.lost, client + balancer + server, "{heard:?}");
        assert_eq!(
            stop_and_count_drops(&mut self.forward),
            balancer,
            "{heard:?}"
        );
        assert!(stop_and_count_drops(&mut self.proxy) <= server, "{heard:?}");
        assert_eq!(heard.out_of_order, 0, "{heard:?}");
        // 20 Mbit/s make 3571 in two seconds, and iperf takes 20M for 20 * 2^20.
        assert!(heard.total > 3000, "{heard:?}");
        (balancer + server).unsigned_abs()
    }

    fn wait_server_report(&self) -> Report {
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
        let number = |index: usize| fields.get(index)?.parse().ok();
        Some(Self {
            from: from_parts(fields.get(1)?, fields.get(2)?)?,
            to: from_parts(fields.get(3)?, fields.get(4)?)?,
            lost: number(10)?,
            total: number(11)?,
            out_of_order: number(13)?,
        })
    }
}

/// Stops a process, and returns how many datagrams it has lost at full receive buffers, by the last line of its log.
fn stop_and_count_drops(process: &mut Peername) -> i64 {
    let totals = process.stop();
    let dropped = totals["datagrams_dropped"].as_str().expect("a field");
    dropped
        .split(' ')
        .find_map(|reason| reason.strip_prefix("receive_buffer_full="))
        .map_or(0, |count| count.parse().expect("a number"))
}

/// Datagrams that a host has dropped at full receive buffers, of both families.
fn receive_buffer_errors(host: &Host) -> i64 {
    // Two lines for UDP over IPv4: the names of the counters, and their values.
    let v4 = host.run("cat", &["/proc/net/snmp"]);
    let mut udp = v4.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (udp.next().expect("names"), udp.next().expect("values"));
    let (_, v4_errors) = names
        .split(' ')
        .zip(values.split(' '))
        .find(|(name, _)| *name == "RcvbufErrors")
        .expect("the counter");
    // A line for each counter of IPv6.
    let v6 = host.run("cat", &["/proc/net/snmp6"]);
    let v6_errors = v6
        .lines()
        .find_map(|line| line.strip_prefix("Udp6RcvbufErrors"))
        .expect("the counter");
    [v4_errors, v6_errors]
        .map(|count| count.trim().parse::<i64>().expect("a number"))
        .iter()
        .sum()
}

const FAMILIES: [(SocketAddr, SocketAddr, SocketAddr); 2] = [
    (CLIENT_V4, FRONT_V4, TARGET_V4),
    (CLIENT_V6, FRONT_V6, TARGET_V6),
];

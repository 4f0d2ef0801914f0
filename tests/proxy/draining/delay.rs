//! `--drain-delay`: after SIGTERM `/readyz` is 503 before the first client is refused, so that a balancer notices in time.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::addr::{FRONT_V4, LISTEN_V4, TARGET_V4, fresh_client_v4, v4};
use crate::harness::admin::{ADMIN, wait_answer};
use crate::harness::datagram::DatagramSocket;
use crate::harness::lab::{Lab, WAIT_LIMIT};
use crate::harness::peername::{Peername, words};
use crate::harness::programs::sender::haproxy::Haproxy;
use crate::harness::rig::load::under_load;
use crate::harness::rig::proxy::ProxyRig;
use crate::harness::rig::udp::datagram_header_for;

#[test]
fn clients_are_accepted_while_the_drain_is_announced() {
    let mut rig = ProxyRig::new(&[ADMIN, "--drain-delay=2s", "--protocol=both"]);
    let host = &rig.lab.server;
    let backend = DatagramSocket::bind(host, TARGET_V4);
    let balancer = DatagramSocket::bind(&rig.lab.balancer, v4([10, 81, 0, 2], 0));
    let begin = Instant::now();
    rig.proxy.signal(Signal::TERM);
    wait_answer(host, "/readyz", "draining\n503");
    let (down, up) = rig.connect_client(fresh_client_v4());
    let client = fresh_client_v4();
    balancer.send(LISTEN_V4, &[&datagram_header_for(client), b"ping"]);
    assert_eq!(backend.recv(), (b"ping".to_vec(), client));
    rig.lab.balancer.wait_connection_refused(LISTEN_V4);
    assert!(begin.elapsed() >= DELAY, "{:?}", begin.elapsed());
    down.assert_reaches(&up, b"ping");
    drop((down, up, backend));
    rig.proxy.wait_success(Duration::from_secs(5));
}

#[test]
fn second_sigterm_ends_the_delay_at_once() {
    let mut rig = ProxyRig::new(&[ADMIN, "--drain-delay=60s"]);
    let (down, _up) = rig.connect_client(fresh_client_v4());
    rig.proxy.signal(Signal::TERM);
    wait_answer(&rig.lab.server, "/readyz", "draining\n503");
    rig.proxy.signal(Signal::TERM);
    rig.proxy.wait_success(Duration::from_secs(2));
    down.wait_closed();
}

/// An unmodified HAProxy checks `/readyz` of two nodes. One of them drains under load, and no request fails.
#[test]
fn haproxy_takes_a_node_out_without_a_failed_request() {
    let lab = Lab::new();
    // The client needs a port for each of many connections.
    lab.client
        .sysctl("net.ipv4.ip_local_port_range", "32768 60999");
    let backend = lab.server.enter(|| TcpListener::bind(TARGET_V4));
    let backend = backend.expect("the backend");
    thread::spawn(move || backend.incoming().flatten().for_each(echo));
    let mut nodes = [(8443, 9301), (8444, 9302)].map(|(port, admin)| start_node(&lab, port, admin));
    let listen = |port| SocketAddr::new(LISTEN_V4.ip(), port);
    let haproxy =
        Haproxy::start_checking_readiness(&lab, [(listen(8443), 9301), (listen(8444), 9302)]);
    haproxy.wait_server_state(&lab, "UP");
    let request = || {
        lab.client.enter(request).expect("no failed request");
        thread::sleep(Duration::from_millis(2));
    };
    under_load(4, request, |load| {
        load.wait_served(200);
        nodes[0].signal(Signal::TERM);
        nodes[0].wait_success(Duration::from_secs(10));
        load.wait_served(200);
    });
    let log = nodes[0].log();
    let totals = log.lines().find(|line| line.contains("\"stopped\""));
    assert!(
        totals.is_some_and(|line| !line.contains("\"connections\":0")),
        "{log}"
    );
}

fn start_node(lab: &Lab, port: u16, admin: u16) -> Peername {
    let addr = SocketAddr::new(LISTEN_V4.ip(), port);
    let line = format!(
        "proxy --listen={addr} --target-v4=127.0.0.1:9000 --trust=10.81.0.0/24 \
         --admin=10.81.0.1:{admin} --drain-delay=1s --log-format=json"
    );
    Peername::start(&lab.server, &words(&line), &[addr])
}

/// Sends a request through HAProxy on a connection of its own; succeeds if the whole answer comes back.
fn request() -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&FRONT_V4, WAIT_LIMIT)?;
    stream.set_read_timeout(Some(WAIT_LIMIT))?;
    stream.write_all(b"ping")?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    match answer.as_slice() {
        b"ping" => Ok(()),
        _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}

fn echo(mut stream: TcpStream) {
    thread::spawn(move || {
        let mut reader = stream.try_clone()?;
        std::io::copy(&mut reader, &mut stream)?;
        stream.shutdown(Shutdown::Write)
    });
}

/// `--drain-delay=2s`. It begins when the signal is handled, so after the signal is sent.
const DELAY: Duration = Duration::from_secs(2);

//! QUIC: no middlebox can read or repair it, and both ends check each other's address.

use std::net::SocketAddr;

use crate::harness::addr::{CLIENT_V4, CLIENT_V6, FRONT_V4, FRONT_V6, TARGET_V4, TARGET_V6};
use crate::harness::lab::{Lab, Process, Scratch};
use crate::harness::peername::Peername;
use crate::harness::programs::create_self_signed;
use crate::harness::rig::udp::{DIALECTS, start_forward};

/// A download over HTTP/3 through each dialect: the file is complete, and every packet came to the server
/// from the client's own address and port.
#[test]
fn http3_download_shows_the_client_in_every_packet() {
    for (sender, receiver) in DIALECTS {
        let lab = Lab::new();
        let scratch = Scratch::new();
        let [key, cert] = ["key.pem", "cert.pem"].map(|name| scratch.path_text(name));
        create_self_signed(&lab.server, &key, &cert);
        scratch.write("file", &FILE.repeat(20_000));
        let servers = [TARGET_V4, TARGET_V6].map(|addr| start_server(&lab, &scratch, addr));
        let _proxy = Peername::udp_proxy(&lab, &[], &[receiver]);
        let _forward = start_forward(&lab, &[sender]);
        let fronts = [(CLIENT_V4, FRONT_V4), (CLIENT_V6, FRONT_V6)];
        for ((client, front), server) in fronts.into_iter().zip(&servers) {
            download(&lab, &scratch, front);
            assert_packets_come_from(server, client);
        }
    }
}

/// Starts ngtcp2's server, which serves the scratch directory and logs each packet.
fn start_server(lab: &Lab, scratch: &Scratch, addr: SocketAddr) -> Process {
    let (key, cert) = (scratch.path_text("key.pem"), scratch.path_text("cert.pem"));
    let (ip, port) = (addr.ip().to_string(), addr.port().to_string());
    let args = ["-d", &scratch.path_text("."), &ip, &port, &key, &cert];
    let process = Process::start(&lab.server, "gtlsserver", &args);
    process.wait_bound(addr)
}

fn download(lab: &Lab, scratch: &Scratch, front: SocketAddr) {
    let downloads = scratch.path_text("downloads");
    lab.client.run("mkdir", &["-p", &downloads]);
    let download = format!("--download={downloads}");
    let (ip, port) = (front.ip().to_string(), front.port().to_string());
    let url = "https://front.example/file";
    let args = ["--signal=KILL", "20", "gtlsclient", "-q", &download];
    let args = [&args[..], &["--exit-on-all-streams-close", &ip, &port, url]].concat();
    lab.client.run("timeout", &args);
    let is_complete = scratch.read("downloads/file") == FILE.repeat(20_000);
    assert!(is_complete, "the download differs from the file");
    scratch.write("downloads/file", "");
}

/// Asserts that every packet at the server came from the client.
fn assert_packets_come_from(server: &Process, client: SocketAddr) {
    let from = format!("remote=[{}]:{} ", client.ip(), client.port());
    server.wait_logged_times(RECEIVED, 11);
    for packet in server
        .log()
        .lines()
        .filter(|line| line.starts_with(RECEIVED))
    {
        assert!(packet.contains(&from), "{packet}");
    }
}

/// Begins a line of the server's log.
const RECEIVED: &str = "Received packet: ";

const FILE: &str = "What comes back is to be what was sent, all of it.\n";

//! Reload of `forward`: the server gets every request, with its client.

use std::net::SocketAddr;

use crate::harness::addr::{CLIENT_V4, FRONT_V4, v4};
use crate::harness::conn::Conn;
use crate::harness::datagram::DatagramSocket;
use crate::harness::lab::{Lab, Process, Scratch};
use crate::harness::peername::Peername;
use crate::harness::rig::load::under_load;

/// Every tenth reload is of an invalid file. The others change the header's version, and add or remove a listener.
#[test]
fn forward_reloads_under_load_and_loses_no_request() {
    let mut rig = ForwardRig::new(&table(FRONT_V4, 2));
    let long = Conn::connect(&rig.lab.client, FRONT_V4);
    long.send(b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    long.recv_text_until(|text| text.ends_with("203.0.113.9\n"));
    let get = || rig.assert_served(FRONT_V4);
    let served = under_load(3, get, |load| {
        for round in 1..=RELOADS {
            match round % 10 {
                0 => rig.reload("[[forward]]\nto = 7\n", "reload refused"),
                _ if round % 2 == 0 => rig.reload(&table(FRONT_V4, 1), "\"reloaded\""),
                _ => {
                    let both = table(FRONT_V4, 2) + &table(SECOND, 2);
                    rig.reload(&both, "\"reloaded\"");
                    rig.assert_served(SECOND);
                }
            }
            load.wait_served(1);
        }
    });
    // A connection keeps the configuration it began with.
    long.send(b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    long.recv_text_until(|text| text.ends_with("203.0.113.9\n"));
    drop(long);
    let totals = rig.forward.stop();
    assert_eq!(totals["reloads"], RELOADS - RELOADS / 10, "{totals}");
    assert_eq!(totals["reloads_refused"], RELOADS / 10, "{totals}");
    let log = rig.files.read("access.log");
    let requests_of_second = (1..=RELOADS).filter(|round| round % 2 == 1).count();
    // And the two of the long connection.
    assert_eq!(log.lines().count(), served + requests_of_second + 2);
    let other_client = log.lines().find(|line| *line != "203.0.113.9");
    assert_eq!(other_client, None, "each request came with its client");
}

/// A change that needs a restart is refused with its key, and nothing else of the file is applied.
#[test]
fn forward_refuses_what_needs_a_restart() {
    let udp = "[[forward]]\nlisten = [\"203.0.113.1:5353\"]\nto = \"10.81.0.1:5353\"\nprotocol = \"udp\"\n";
    let rig = ForwardRig::new(&(table(FRONT_V4, 2) + udp));
    for (file, key) in [
        (format!("workers = 2\n{}{udp}", table(SECOND, 2)), "workers"),
        (format!("verbose = 1\n{}{udp}", table(SECOND, 2)), "verbose"),
        (
            table(SECOND, 2) + udp + "close-after = \"1s\"\n",
            "close-after",
        ),
        (udp.replace("10.81.0.1", "203.0.113.1"), "itself"),
        (table(SECOND, 2) + "colour = 1\n", "colour: unknown key"),
        (
            "[[listen]]\ntarget = \"127.0.0.1:443\"\ntrust = [\"any\"]\n".to_owned(),
            "[[forward]]",
        ),
    ] {
        rig.reload(&file, key);
        rig.assert_served(FRONT_V4);
    }
    assert_eq!(rig.forward.count_logged("\"reloaded\""), 0);
}

/// The listener's socket stays, and new sessions go to the new server; open sessions stay with the old one.
#[test]
fn forward_reload_moves_new_udp_sessions() {
    let file = |port| {
        format!(
            "[[forward]]\nlisten = [\"203.0.113.1:5353\"]\nto = \"10.81.0.1:{port}\"\nprotocol = \"udp\"\n\
             proxy-version = \"none\"\n"
        )
    };
    let lab = Lab::new();
    lab.client
        .sysctl("net.ipv4.ip_local_port_range", "32768 60999");
    let files = Scratch::new();
    let config = format!("--config={}", files.write("forward.toml", &file(5001)));
    let args = ["forward", "--log-format=json", &config];
    let forward = Peername::start_listening(&lab.balancer, &args);
    let servers =
        [5001, 5002].map(|port| DatagramSocket::bind(&lab.server, v4([10, 81, 0, 1], port)));
    let front = v4([203, 0, 113, 1], 5353);
    let old = DatagramSocket::bind(&lab.client, v4([203, 0, 113, 9], 41_001));
    old.send(front, &[b"one"]);
    assert_eq!(servers[0].recv().0, b"one");
    files.write("forward.toml", &file(5002));
    forward.reload("\"reloaded\"");
    old.send(front, &[b"two"]);
    assert_eq!(servers[0].recv().0, b"two");
    let new = DatagramSocket::bind(&lab.client, v4([203, 0, 113, 9], 41_002));
    new.send(front, &[b"three"]);
    assert_eq!(servers[1].recv().0, b"three");
}

/// `forward` with a configuration file, and nginx, which reads the header.
struct ForwardRig {
    forward: Peername,
    _nginx: Process,
    files: Scratch,
    lab: Lab,
}

impl ForwardRig {
    fn new(file: &str) -> Self {
        let lab = Lab::new();
        lab.client
            .sysctl("net.ipv4.ip_local_port_range", "32768 60999");
        let files = Scratch::new();
        let nginx = NGINX.replace("DIR", &files.path_text("."));
        let nginx = files.write("nginx.conf", &nginx);
        let nginx = ["-c", &nginx, "-e", "stderr"];
        let nginx = Process::start_in_pid_namespace(&lab.server, "nginx", &nginx);
        let nginx = nginx.wait_listening(&[SERVER]);
        let config = format!("--config={}", files.write("forward.toml", file));
        let args = ["forward", "--log-format=json", &config];
        Self {
            forward: Peername::start(&lab.balancer, &args, &[FRONT_V4]),
            _nginx: nginx,
            files,
            lab,
        }
    }

    #[track_caller]
    fn reload(&self, content: &str, says_then: &str) {
        self.files.write("forward.toml", content);
        self.forward.reload(says_then);
    }

    #[track_caller]
    fn assert_served(&self, front: SocketAddr) {
        let conn = Conn::connect(&self.lab.client, front);
        conn.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = conn.recv_text_to_end();
        let client = CLIENT_V4.ip();
        assert!(answer.ends_with(&format!("{client}\n")), "{answer}");
    }
}

fn table(listen: SocketAddr, version: u8) -> String {
    format!("[[forward]]\nlisten = [\"{listen}\"]\nto = \"{SERVER}\"\nproxy-version = {version}\n")
}

const RELOADS: usize = 100;
const SERVER: SocketAddr = v4([10, 81, 0, 1], 9000);
const SECOND: SocketAddr = v4([203, 0, 113, 1], 8080);
const NGINX: &str = include_str!("forward/nginx.conf");

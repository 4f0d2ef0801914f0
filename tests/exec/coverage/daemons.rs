//! Servers of several processes that drop root: clients are seen in each process, with slow headers, too.

use crate::harness::addr::{LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{Scratch, wait_until};
use crate::harness::programs::server::nginx;
use crate::harness::rig::exec::{ProgramRig, v2};

/// The workers run as another user, which could not open the table.
#[test]
fn nginx_workers_see_their_clients() {
    for reuseport in ["", "reuseport"] {
        let scratch = Scratch::new();
        scratch.write("index.html", "hello\n");
        let server = format!("listen {LISTEN_V4} {reuseport}; root DIR;");
        let main = "user www-data; worker_processes 2;";
        let config = nginx::write_config(&scratch, main, nginx::PEER, &server);
        let program = ProgramRig::start(&["nginx", "-c", &config, "-e", "stderr"]);
        assert_clients_logged(&program, &scratch);
    }
}

#[test]
fn apache_workers_see_their_clients() {
    let scratch = Scratch::new();
    scratch.write("index.html", "hello\n");
    let config = scratch.write(
        "apache.conf",
        &APACHE.replace("DIR", &scratch.path_text(".")),
    );
    let program = ProgramRig::start(&["/usr/sbin/apache2", "-f", &config, "-D", "FOREGROUND"]);
    assert_clients_logged(&program, &scratch);
}

/// Twenty clients, so that every worker has some, a few of them with the header in two pieces.
fn assert_clients_logged(program: &ProgramRig, scratch: &Scratch) {
    let clients: Vec<_> = (0..20).map(|_| fresh_client_v4()).collect();
    for (number, client) in clients.iter().enumerate() {
        let header = v2(*client);
        let (first, second) = header.split_at(if number.is_multiple_of(4) {
            20
        } else {
            header.len()
        });
        let conn = Conn::connect_and_send(&program.lab.balancer, LISTEN_V4, first);
        conn.send(second);
        conn.send(b"GET / HTTP/1.0\r\n\r\n");
        let (output, _) = conn.recv_to_end();
        assert!(output.ends_with(b"hello\n"), "{}", program.process.log());
    }
    wait_until("the access log", || {
        let log = scratch.read("access.log");
        let seen = |client: &std::net::SocketAddr| {
            let line = format!("{} {}", client.ip(), client.port());
            log.lines().any(|l| l == line)
        };
        clients.iter().all(seen)
    });
}

const APACHE: &str = include_str!("daemons/apache.conf");

//! nginx: the access log.

use std::net::SocketAddr;

use super::Server;
use crate::harness::addr::{TARGET_V4, TARGET_V6};
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, Process, Scratch, wait_for};

#[derive(Debug)]
pub(crate) struct Nginx {
    _process: Process,
    scratch: Scratch,
}

impl Server for Nginx {
    fn start(host: &Host) -> Self {
        let scratch = Scratch::new();
        scratch.write("index.html", "hello\n");
        let server = format!("listen {TARGET_V4}; listen {TARGET_V6}; root DIR;");
        let config = write_config(&scratch, "user root; worker_processes 1;", PEER, &server);
        let process =
            Process::start_in_pid_namespace(host, "nginx", &["-c", &config, "-e", "stderr"]);
        Self {
            _process: process.wait_listening(&[TARGET_V4, TARGET_V6]),
            scratch,
        }
    }

    fn reported_client(&self, client: &Host, front: SocketAddr) -> SocketAddr {
        let before = self.scratch.read("access.log").lines().count();
        let conn = Conn::connect_and_send(client, front, b"GET / HTTP/1.0\r\n\r\n");
        let (answer, _) = conn.recv_to_end();
        assert!(
            answer.ends_with(b"hello\n"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
        self.logged_client(before)
    }
}

impl Nginx {
    /// Waits for request number `index` in the log, and returns its client.
    pub(crate) fn logged_client(&self, index: usize) -> SocketAddr {
        logged_client(&self.scratch, index)
    }
}

/// Writes the configuration of an nginx that has all its files in `scratch`, the access log among them, and
/// returns its path. `main` and `server` are directives of those contexts, with DIR for the directory; `log`
/// is the log format of a request.
pub(crate) fn write_config(scratch: &Scratch, main: &str, log: &str, server: &str) -> String {
    let config = CONFIG
        .replace("MAIN", main)
        .replace("LOG", log)
        .replace("SERVER", server)
        .replace("DIR", &scratch.path_text("."));
    scratch.write("nginx.conf", &config)
}

/// Waits for request number `index` in the log, which must have the format [`PEER`], and returns its client.
pub(crate) fn logged_client(scratch: &Scratch, index: usize) -> SocketAddr {
    wait_for("nginx's access log", || {
        let log = scratch.read("access.log");
        let line = log.split_inclusive('\n').nth(index)?.strip_suffix('\n')?;
        let (ip, port) = line.split_once(' ')?;
        crate::harness::addr::from_parts(ip, port)
    })
}

/// The log format that shows the client's address and port.
pub(crate) const PEER: &str = "$remote_addr $remote_port";

const CONFIG: &str = include_str!("nginx/nginx.conf");

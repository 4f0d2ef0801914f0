//! nginx: the access log.

use std::net::SocketAddr;

use super::Server;
use crate::addr::{TARGET_V4, TARGET_V6};
use crate::conn::Conn;
use crate::lab::{Host, Process, Scratch, wait_for};

#[derive(Debug)]
pub(crate) struct Nginx {
    _process: Process,
    scratch: Scratch,
}

impl Server for Nginx {
    fn start(host: &Host) -> Self {
        let scratch = Scratch::new();
        scratch.write("index.html", "hello\n");
        let config = CONFIG.replace("DIR", &scratch.text("."));
        let config = scratch.write("nginx.conf", &config);
        let process = Process::start_family(host, "nginx", &["-c", &config, "-e", "stderr"]);
        Self {
            _process: process.listens(&[TARGET_V4, TARGET_V6]),
            scratch,
        }
    }

    fn ask(&self, client: &Host, front: SocketAddr) -> SocketAddr {
        let before = self.scratch.read("access.log").lines().count();
        let conn = Conn::open(client, front, b"GET / HTTP/1.0\r\n\r\n");
        let (answer, _) = conn.drain();
        assert!(
            answer.ends_with(b"hello\n"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
        self.logged(before)
    }
}

impl Nginx {
    /// The client of request number `index`, once it is in the log.
    pub(crate) fn logged(&self, index: usize) -> SocketAddr {
        wait_for("nginx's access log", || {
            let log = self.scratch.read("access.log");
            let line = log.split_inclusive('\n').nth(index)?.strip_suffix('\n')?;
            let (ip, port) = line.split_once(' ')?;
            Some(SocketAddr::new(ip.parse().ok()?, port.parse().ok()?))
        })
    }
}

const CONFIG: &str = "
daemon off;
user root;
worker_processes 1;
pid DIR/nginx.pid;
events {}
http {
    log_format peer '$remote_addr $remote_port';
    access_log DIR/access.log peer;
    client_body_temp_path DIR/body;
    proxy_temp_path DIR/proxy;
    fastcgi_temp_path DIR/fastcgi;
    uwsgi_temp_path DIR/uwsgi;
    scgi_temp_path DIR/scgi;
    server {
        listen 127.0.0.1:9000;
        listen [::1]:9000;
        root DIR;
    }
}
";

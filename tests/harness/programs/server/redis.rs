//! Redis: `CLIENT LIST`.

use std::net::SocketAddr;

use super::Server;
use crate::harness::addr::{TARGET_V4, TARGET_V6};
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, Process};

#[derive(Debug)]
pub(crate) struct Redis(Process);

impl Server for Redis {
    fn start(host: &Host) -> Self {
        let args = "--bind 127.0.0.1 ::1 --port 9000 --save '' --appendonly no --protected-mode no";
        let args: Vec<&str> = args
            .split(' ')
            .map(|arg| if arg == "''" { "" } else { arg })
            .collect();
        let process = Process::start(host, "redis-server", &args);
        Self(process.wait_listening(&[TARGET_V4, TARGET_V6]))
    }

    fn reported_client(&self, client: &Host, front: SocketAddr) -> SocketAddr {
        let conn = Conn::connect_and_send(client, front, b"CLIENT LIST\r\n");
        let list = String::from_utf8(conn.recv_some()).expect("text");
        // Each line has `addr=` (the client), `laddr=` (the server) and `cmd=`; the newest client is last.
        // That may be a health check, which sends no CLIENT LIST.
        let mut asking = list.lines().filter(|line| line.contains(" cmd=client"));
        asking
            .next_back()
            .and_then(|line| line.split(' ').find_map(|word| word.strip_prefix("addr=")))
            .and_then(|addr| addr.parse().ok())
            .unwrap_or_else(|| panic!("CLIENT LIST: {list}\n{}", self.0.log()))
    }
}

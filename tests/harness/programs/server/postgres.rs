//! PostgreSQL: `pg_hba.conf` admits the true clients only, and SQL returns the client's address.

use std::net::SocketAddr;

use super::Server;
use crate::harness::addr::{TARGET_V4, TARGET_V6, from_parts};
use crate::harness::lab::{Host, OWN_PID_NAMESPACE, Process, Scratch};

#[derive(Debug)]
pub(crate) struct Postgres {
    process: Process,
    _scratch: Scratch,
}

impl Server for Postgres {
    fn start(host: &Host) -> Self {
        let scratch = Scratch::new();
        let data = scratch.path_text("data");
        // PostgreSQL refuses to run as root.
        let as_postgres = ["-u", "postgres", "--"];
        let (initdb, server) = (program("initdb"), program("postgres"));
        let initdb = [initdb.as_str(), "-N", "-A", "trust", "-D", &data];
        host.run("runuser", &[&as_postgres[..], &initdb].concat());
        scratch.write("data/pg_hba.conf", HBA);
        scratch.write(
            "data/postgresql.conf",
            &CONFIG.replace("DIR", &scratch.path_text(".")),
        );
        let through = [OWN_PID_NAMESPACE, &["runuser"], &as_postgres].concat();
        let process = Process::start_through(host, &through, &server, &["-D", &data]);
        Self {
            process: process.wait_listening(&[TARGET_V4, TARGET_V6]),
            _scratch: scratch,
        }
    }

    fn reported_client(&self, client: &Host, front: SocketAddr) -> SocketAddr {
        let selected = select_client(client, front);
        let (ip, port) = selected
            .trim()
            .split_once(' ')
            .expect("an address and a port");
        let logged = format!("connection received: host={ip} port={port}");
        self.process.wait_logged(&logged);
        from_parts(ip, port).expect("an address and a port")
    }
}

/// Returns the client's address and port as SQL has them.
pub(crate) fn select_client(client: &Host, front: SocketAddr) -> String {
    let (host, port) = (front.ip().to_string(), front.port().to_string());
    let sql = "select host(inet_client_addr()), inet_client_port()";
    let args = [
        "-XAt", "-F", " ", "-h", &host, "-p", &port, "-U", "postgres", "-c", sql,
    ];
    let database = ["-d", "sslmode=disable dbname=postgres"];
    client.run("psql", &[&args[..], &database].concat())
}

/// The path of a server program, which Debian installs in a directory per version, outside of PATH.
pub(crate) fn program(name: &str) -> String {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL (make setup)");
    let newest = versions
        .map(|entry| entry.expect("a version").path())
        .max()
        .expect("a version");
    newest
        .join("bin")
        .join(name)
        .to_str()
        .expect("text")
        .to_owned()
}

const HBA: &str = "
host all all 203.0.113.9/32 trust
host all all 2001:db8:9::9/128 trust
";

const CONFIG: &str = "
listen_addresses = '127.0.0.1,::1'
port = 9000
unix_socket_directories = 'DIR'
fsync = off
log_connections = on
";

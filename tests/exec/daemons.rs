//! Servers of several processes, which give up root and start programs: the identity must come along.

use super::rig::{Program, v2};
use crate::addr::{CLIENT_V4, FRONT_V4, LISTEN_V4, someone_v4};
use crate::conn::Conn;
use crate::lab::{Scratch, wait_for};
use crate::sender::Haproxy;
use crate::server::{nginx, sshd};

/// The workers are another user's, who could not open the table.
#[test]
fn nginx() {
    for reuseport in ["", "reuseport"] {
        let scratch = Scratch::new();
        scratch.write("index.html", "hello\n");
        let server = format!("listen {LISTEN_V4} {reuseport}; root DIR;");
        let main = "user www-data; worker_processes 2;";
        let config = nginx::configure(&scratch, main, nginx::PEER, &server);
        let program = Program::start(&["nginx", "-c", &config, "-e", "stderr"]);
        logs_the_clients(&program, &scratch);
    }
}

#[test]
fn apache() {
    let scratch = Scratch::new();
    scratch.write("index.html", "hello\n");
    let config = scratch.write("apache.conf", &APACHE.replace("DIR", &scratch.text(".")));
    let program = Program::start(&["/usr/sbin/apache2", "-f", &config, "-D", "FOREGROUND"]);
    logs_the_clients(&program, &scratch);
}

/// Twenty of them, so that every worker has some, a few in two pieces.
fn logs_the_clients(program: &Program, scratch: &Scratch) {
    let clients: Vec<_> = (0..20).map(|_| someone_v4()).collect();
    for (number, client) in clients.iter().enumerate() {
        let header = v2(*client);
        let (first, second) = header.split_at(if number.is_multiple_of(4) {
            20
        } else {
            header.len()
        });
        let conn = Conn::open(&program.lab.balancer, LISTEN_V4, first);
        conn.send(second);
        conn.send(b"GET / HTTP/1.0\r\n\r\n");
        let (said, _) = conn.drain();
        assert!(said.ends_with(b"hello\n"), "{}", program.process.log());
    }
    wait_for("the access log", || {
        let log = scratch.read("access.log");
        let seen = |client: &std::net::SocketAddr| {
            let line = format!("{} {}", client.ip(), client.port());
            log.lines().any(|l| l == line)
        };
        clients.iter().all(seen).then_some(())
    });
}

/// `pg_hba.conf` is decided on the client, not on the proxy.
#[test]
fn postgres() {
    let scratch = Scratch::new();
    let data = scratch.text("data");
    let lab = crate::lab::Lab::without_routes();
    let bin = newest_postgres();
    let initdb = format!("{bin}/initdb");
    let as_postgres = [
        "-u", "postgres", "--", &initdb, "-N", "-A", "trust", "-D", &data,
    ];
    lab.server.run("runuser", &as_postgres);
    scratch.write("data/pg_hba.conf", "host all all 203.0.113.9/32 trust\n");
    let config = POSTGRES.replace("DIR", &scratch.text("."));
    scratch.write("data/postgresql.conf", &config);
    let server = format!("{bin}/postgres");
    let program = Program::start_as(
        lab,
        &["runuser", "-u", "postgres", "--"],
        &[&server, "-D", &data],
    );
    let _haproxy = Haproxy::start(&program.lab, LISTEN_V4, "send-proxy-v2");
    let sql = "select host(inet_client_addr()), inet_client_port()";
    let said = program.lab.client.run(
        "psql",
        &[
            "-XAt",
            "-F",
            " ",
            "-h",
            "203.0.113.1",
            "-p",
            "80",
            "-U",
            "postgres",
            "-c",
            sql,
            "-d",
            "sslmode=disable dbname=postgres",
        ],
    );
    assert_eq!(
        said.trim(),
        format!("{} {}", CLIENT_V4.ip(), CLIENT_V4.port())
    );
    // Somebody else is refused: a StartupMessage for user postgres (PostgreSQL's protocol 3.0).
    let stranger = someone_v4();
    let startup = b"\0\0\0\x17\0\x03\0\0user\0postgres\0\0";
    let conn = Conn::open(
        &program.lab.balancer,
        LISTEN_V4,
        &[&v2(stranger)[..], startup].concat(),
    );
    let said = String::from_utf8_lossy(&conn.recv_some()).into_owned();
    assert!(said.contains(&format!("\"{}\"", stranger.ip())), "{said}");
}

/// sshd closes every descriptor, runs itself anew and asks for its peer there.
#[test]
fn sshd() {
    let scratch = Scratch::new();
    let lab = crate::lab::Lab::without_routes();
    let config = sshd::configure(&lab.server, &scratch, &[LISTEN_V4]);
    let program = Program::start_as(
        lab,
        &["unshare", "--mount", "sh", "-c", sshd::RUN, "sh"],
        &["/usr/sbin/sshd", "-D", "-e", "-f", &config],
    );
    let _haproxy = Haproxy::start(&program.lab, LISTEN_V4, "send-proxy-v2");
    let client = sshd::ask(&program.process, &scratch, &program.lab.client, FRONT_V4);
    assert_eq!(client, CLIENT_V4);
}

/// Debian keeps the server's programs apart by version and off the search path.
fn newest_postgres() -> String {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL (make setup)");
    let newest = versions.map(|entry| entry.expect("a version").path()).max();
    let bin = newest.expect("a version").join("bin");
    bin.to_str().expect("text").to_owned()
}

const APACHE: &str = "
ServerRoot DIR
ServerName server.example
PidFile DIR/apache.pid
DefaultRuntimeDir DIR
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule dir_module /usr/lib/apache2/modules/mod_dir.so
User www-data
Group www-data
Listen 10.81.0.1:8443
ErrorLog /dev/stderr
LogFormat \"%a %{remote}p\" peer
CustomLog DIR/access.log peer
DocumentRoot DIR
";

const POSTGRES: &str = "
listen_addresses = '10.81.0.1'
port = 8443
unix_socket_directories = 'DIR'
fsync = off
log_connections = on
";

//! Real clients of two programs that need more than a greeting, behind HAProxy.

use super::running::Running;
use crate::harness::addr::{CLIENT_V4, FRONT_V4, LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::assert_contains;
use crate::harness::rig::exec::v2;

/// A login with a key: sshd closes every descriptor, executes itself anew and calls getpeername(2) there.
pub(super) fn logs_in(running: &Running<'_>) {
    let output = running.lab.client.run(
        "ssh",
        &[
            "-F/dev/null",
            "-oStrictHostKeyChecking=no",
            "-oUserKnownHostsFile=/dev/null",
            "-oBatchMode=yes",
            "-oConnectTimeout=10",
            "-i",
            &running.scratch.path_text("user_key"),
            "-p",
            &FRONT_V4.port().to_string(),
            &format!("root@{}", FRONT_V4.ip()),
            "echo $SSH_CONNECTION",
        ],
    );
    let seen = format!("{} {} ", CLIENT_V4.ip(), CLIENT_V4.port());
    assert!(output.starts_with(&seen), "{:?}: {output}", running.mode);
    let logged = format!("from {} port {}", CLIENT_V4.ip(), CLIENT_V4.port());
    running.process.wait_line("of the login", |line| {
        (line.contains("Accepted publickey") && line.contains(&logged)).then_some(())
    });
}

/// `pg_hba.conf` admits the client alone: PostgreSQL decides by the client's address, not the proxy's.
pub(super) fn asks_sql(running: &Running<'_>) {
    let sql = "select host(inet_client_addr()), inet_client_port()";
    let (host, port) = (FRONT_V4.ip().to_string(), FRONT_V4.port().to_string());
    let args = [
        "-XAt", "-F", " ", "-h", &host, "-p", &port, "-U", "postgres", "-c", sql,
    ];
    let database = ["-d", "sslmode=disable dbname=postgres"];
    let output = running
        .lab
        .client
        .run("psql", &[&args[..], &database].concat());
    let client = format!("{} {}", CLIENT_V4.ip(), CLIENT_V4.port());
    assert_eq!(output.trim(), client, "{:?}", running.mode);
    let stranger = fresh_client_v4();
    let bytes = [&v2(stranger)[..], super::catalogue::STARTUP].concat();
    let conn = Conn::connect_and_send(&running.lab.balancer, LISTEN_V4, &bytes);
    let output = String::from_utf8_lossy(&conn.recv_some()).into_owned();
    assert_contains(&output, &[&format!("\"{}\"", stranger.ip())]);
}

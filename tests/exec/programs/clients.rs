//! Real clients of two programs that need more than a greeting, behind HAProxy.

use super::running::Running;
use crate::harness::addr::{CLIENT_V4, FRONT_V4, LISTEN_V4, fresh_client_v4};
use crate::harness::conn::Conn;
use crate::harness::lab::{assert_contains, lossy_text};
use crate::harness::programs::server::{postgres, sshd};
use crate::harness::rig::exec::v2;

/// A login with a key: sshd closes every descriptor, executes itself anew and calls getpeername(2) there.
pub(super) fn connect_by_ssh(running: &Running<'_>) {
    let client = &running.lab.client;
    let seen = sshd::reported_client(&running.process, &running.scratch, client, FRONT_V4);
    assert_eq!(seen, CLIENT_V4, "{:?}", running.mode);
}

/// `pg_hba.conf` admits the client alone: PostgreSQL decides by the client's address, not the proxy's.
pub(super) fn connect_by_psql(running: &Running<'_>) {
    let output = postgres::select_client(&running.lab.client, FRONT_V4);
    let client = format!("{} {}", CLIENT_V4.ip(), CLIENT_V4.port());
    assert_eq!(output.trim(), client, "{:?}", running.mode);
    let other = fresh_client_v4();
    let bytes = [&v2(other)[..], super::catalogue::STARTUP].concat();
    let conn = Conn::connect_and_send(&running.lab.balancer, LISTEN_V4, &bytes);
    let output = lossy_text(&conn.recv_some());
    assert_contains(&output, &[&format!("\"{}\"", other.ip())]);
}

//! HAProxy in TCP mode.

use std::net::SocketAddr;

use super::wait_frontend_listening;
use crate::harness::lab::{Lab, Process, Scratch, wait_for};
use crate::harness::programs::create_self_signed;

#[derive(Debug)]
pub(crate) struct Haproxy {
    _process: Process,
    scratch: Scratch,
}

impl Haproxy {
    /// Starts HAProxy at the frontend's addresses with one server, `to`, and these options on its `server` line
    /// (`send-proxy`, `check` …).
    pub(crate) fn start(lab: &Lab, to: SocketAddr, server_options: &str) -> Self {
        Self::start_with(lab, to, server_options, "", "")
    }

    /// Like [`Self::start`], for TLS clients, so that the headers have TLS TLVs. The certificate is self-signed.
    pub(crate) fn start_tls(lab: &Lab, to: SocketAddr, server_options: &str) -> Self {
        Self::start_with(lab, to, server_options, "ssl crt DIR/cert.pem", "")
    }

    /// Like [`Self::start`], with a health check every 50 ms, which speaks Redis' protocol.
    pub(crate) fn start_checking_redis(lab: &Lab, to: SocketAddr, server_options: &str) -> Self {
        let options = format!("{server_options} check inter 50ms fall 5 rise 2");
        Self::start_with(lab, to, &options, "", "option redis-check")
    }

    /// Starts HAProxy with two servers. HAProxy checks `/readyz` on the admin port of each every 100 ms, and does not retry
    /// connections.
    pub(crate) fn start_checking_readiness(
        lab: &Lab,
        [(first, first_admin), (second, second_admin)]: [(SocketAddr, u16); 2],
    ) -> Self {
        let options = |admin| format!("send-proxy-v2 check port {admin} inter 100ms fall 1 rise 1");
        let section = format!(
            "option httpchk GET /readyz\n    retries 0\n    server other {second} {}",
            options(second_admin)
        );
        Self::start_with(lab, first, &options(first_admin), "", &section)
    }

    fn start_with(lab: &Lab, to: SocketAddr, server: &str, bind: &str, section: &str) -> Self {
        let scratch = Scratch::new();
        if !bind.is_empty() {
            make_self_signed(lab, &scratch);
        }
        let config = CONFIG
            .replace("BIND", bind)
            .replace("SECTION", section)
            .replace("SERVER", &format!("{to} {server}"))
            .replace("DIR", &scratch.path_text("."));
        let config = scratch.write("haproxy.cfg", &config);
        let process = Process::start(&lab.balancer, "haproxy", &["-db", "-f", &config]);
        Self {
            _process: wait_frontend_listening(process),
            scratch,
        }
    }

    /// Waits until health checks have put the server into this state, `UP` or `DOWN`.
    pub(crate) fn wait_server_state(&self, lab: &Lab, state: &str) {
        let socket = format!("UNIX-CONNECT:{}", self.scratch.path_text("stats.sock"));
        let show_stat = "echo 'show stat' | socat STDIO \"$0\"";
        wait_for(&format!("HAProxy finds its server {state}"), || {
            let table = lab.balancer.run("sh", &["-c", show_stat, &socket]);
            let server = table
                .lines()
                .find(|line| line.starts_with("front,backend,"))?;
            let field = |n| server.split(',').nth(n).unwrap_or_default();
            let (status, check_status) = (field(17), field(36));
            let is_checked = (check_status == "L7OK") == (state == "UP");
            (status.starts_with(state) && is_checked).then_some(())
        });
    }
}

/// Makes a key and a certificate in one file, as HAProxy requires.
fn make_self_signed(lab: &Lab, scratch: &Scratch) {
    let (key, cert) = (
        scratch.path_text("key.pem"),
        scratch.path_text("cert.only.pem"),
    );
    create_self_signed(&lab.balancer, &key, &cert);
    scratch.write(
        "cert.pem",
        &(scratch.read("key.pem") + &scratch.read("cert.only.pem")),
    );
}

const CONFIG: &str = include_str!("haproxy/haproxy.cfg");

//! nginx's stream module, which sends v1 headers.

use std::net::SocketAddr;

use super::wait_frontend_listening;
use crate::harness::addr::{FRONT_V4, FRONT_V6};
use crate::harness::lab::{Lab, Process, Scratch};

#[derive(Debug)]
pub(crate) struct NginxStream {
    _process: Process,
    _scratch: Scratch,
}

impl NginxStream {
    pub(crate) fn start(lab: &Lab, to: SocketAddr) -> Self {
        Self::start_with(lab, to, "", "")
    }

    /// Starts it behind another balancer, whose header names the client (the realip module).
    pub(crate) fn start_behind_balancer(lab: &Lab, to: SocketAddr) -> Self {
        let realip = "set_real_ip_from 0.0.0.0/0; set_real_ip_from ::/0;";
        Self::start_with(lab, to, "proxy_protocol", realip)
    }

    /// Starts it for UDP.
    pub(crate) fn start_listening(lab: &Lab, to: SocketAddr) -> Self {
        let (process, scratch) = start(lab, to, "udp", "");
        Self {
            _process: process.wait_bound(FRONT_V4).wait_bound(FRONT_V6),
            _scratch: scratch,
        }
    }

    fn start_with(lab: &Lab, to: SocketAddr, listen: &str, server: &str) -> Self {
        let (process, scratch) = start(lab, to, listen, server);
        Self {
            _process: wait_frontend_listening(process),
            _scratch: scratch,
        }
    }
}

fn start(lab: &Lab, to: SocketAddr, listen: &str, server: &str) -> (Process, Scratch) {
    let scratch = Scratch::new();
    let config = CONFIG
        .replace("LISTEN", listen)
        .replace("SERVER", server)
        .replace("TO", &to.to_string())
        .replace("DIR", &scratch.path_text("."));
    let config = scratch.write("nginx.conf", &config);
    let args = ["-c", &config, "-e", "stderr"];
    let process = Process::start_in_pid_namespace(&lab.balancer, "nginx", &args);
    (process, scratch)
}

const CONFIG: &str = include_str!("nginx/nginx.conf");

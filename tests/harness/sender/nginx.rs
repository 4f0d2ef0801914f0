//! nginx's stream module, which sends version 1.

use std::net::SocketAddr;

use super::wait_listening_in_front;
use crate::harness::lab::{Lab, Process, Scratch};

#[derive(Debug)]
pub(crate) struct NginxStream {
    _process: Process,
    _scratch: Scratch,
}

impl NginxStream {
    pub(crate) fn start(lab: &Lab, to: SocketAddr) -> Self {
        let scratch = Scratch::new();
        let config = CONFIG
            .replace("TO", &to.to_string())
            .replace("DIR", &scratch.path_text("."));
        let config = scratch.write("nginx.conf", &config);
        let args = ["-c", &config, "-e", "stderr"];
        let process = Process::start_in_pid_namespace(&lab.balancer, "nginx", &args);
        Self {
            _process: wait_listening_in_front(process),
            _scratch: scratch,
        }
    }
}

const CONFIG: &str = "
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off;
user root;
worker_processes 1;
pid DIR/nginx.pid;
events {}
stream {
    server {
        listen 203.0.113.1:80;
        listen [2001:db8:9::1]:80;
        proxy_pass TO;
        proxy_protocol on;
    }
}
";

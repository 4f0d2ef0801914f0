//! Real senders of PROXY headers, as Debian ships them, on the lab's balancer.

pub(crate) mod haproxy;
pub(crate) mod nginx;

use std::net::SocketAddr;

pub(crate) use haproxy::Haproxy;
pub(crate) use nginx::NginxStream;

use crate::harness::addr::{FRONT_V4, FRONT_V6};
use crate::harness::lab::{Lab, Process};

/// Runs `curl --haproxy-protocol` on the balancer itself: requests a page of the web server behind `to` and
/// returns the endpoint that curl connected from, which is the source in its header.
pub(crate) fn curl_with_header(lab: &Lab, to: SocketAddr) -> SocketAddr {
    let url = format!("http://{to}/");
    let args = [
        "-s",
        "-S",
        "--haproxy-protocol",
        "-o",
        "/dev/null",
        "-w",
        OWN_ENDPOINT,
        &url,
    ];
    let printed = lab.balancer.run("curl", &args);
    let (ip, port) = printed.split_once(' ').expect("an address and a port");
    crate::harness::addr::from_parts(ip, port).expect("an endpoint")
}

/// Waits until a balancer listens at the frontend's addresses.
fn wait_frontend_listening(process: Process) -> Process {
    process.wait_listening(&[FRONT_V4, FRONT_V6])
}

const OWN_ENDPOINT: &str = "%{local_ip} %{local_port}";

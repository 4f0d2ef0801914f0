//! `peername jail`: unmodified programs reach origins through the interceptor, and nothing else.
//!
//! ```text
//!   balancer                            server
//!   jail [program] ── interceptor ───── nginx with TLS, certified by a root of the test's own
//! ```

mod ask;
mod audit;
mod bypasses;
mod denials;
mod failures;
mod files;
mod host_sockets;
mod learn;
mod lists;
mod mistakes;
mod ports;
mod process;
mod replaced_files;
mod requests;
mod tcp;
mod tools;
mod trust;
mod unix_sockets;

use std::process::Command;

use crate::harness::addr::v4;
use crate::harness::lab::{Host, Process, wait_until};
use crate::harness::rig::jail::JailRig;

/// Starts a TCP server that sends `served` to each client.
fn start_server(host: &Host, ip: [u8; 4], port: u16) -> Process {
    let addr = v4(ip, port);
    let listen = format!("TCP-LISTEN:{port},bind={},fork,reuseaddr", addr.ip());
    let args = [&listen, "SYSTEM:echo served"];
    Process::start(host, "socat", &args).wait_listening(&[addr])
}

/// Waits until the interceptors of this rig and their supervisors have exited.
fn wait_interceptor_exit(rig: &JailRig) {
    wait_until("the interceptor's exit", || {
        let pgrep = Command::new("pgrep")
            .args(["-f", &rig.interceptor_pattern()])
            .output();
        pgrep.expect("pgrep").stdout.is_empty()
    });
}

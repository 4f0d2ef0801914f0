//! Runs what a page tells its reader to type on a host, with the program under test first in PATH.

use std::path::Path;

use crate::harness::lab::{Host, Process};
use crate::harness::page::{Page, commands};
use crate::harness::peername::BINARY;

/// Hosts with the addresses of the pages: a client 203.0.113.7, a balancer 192.0.2.10, and behind it a host 192.0.2.20.
pub(super) struct Network {
    pub(super) client: Host,
    pub(super) balancer: Host,
    pub(super) host: Host,
}

impl Network {
    pub(super) fn new() -> Self {
        let (client, balancer, host) = (Host::new(), Host::new(), Host::new());
        balancer.add_veth("eth0", &host, "eth0");
        balancer.add_veth("wan", &client, "eth0");
        balancer.add_addresses("eth0", &["192.0.2.10/24"]);
        balancer.add_addresses("wan", &["203.0.113.1/24"]);
        host.add_addresses("eth0", &["192.0.2.20/24"]);
        client.add_addresses("eth0", &["203.0.113.7/24"]);
        Self {
            client,
            balancer,
            host,
        }
    }
}

/// Runs the commands of the block below "On `name`:" on this host, in order. A proxy among them keeps running, and is returned.
pub(super) fn follow(page: Page, name: &str, host: &Host) -> Option<Process> {
    follow_with(page, name, host, &[])
}

/// As [`follow`], with the proxy started through other programs.
pub(super) fn follow_with(
    page: Page,
    name: &str,
    host: &Host,
    through: &[&str],
) -> Option<Process> {
    let blocks = page.after(&format!("On `{name}`:\n")).blocks();
    let mut proxy = None;
    for command in commands(&blocks[0]) {
        if ["peername proxy ", "peername forward "]
            .iter()
            .any(|program| command.contains(program))
        {
            proxy = Some(start(host, through, &command));
        } else {
            shell(host, &command);
        }
    }
    proxy
}

/// Runs a command to its end, and returns what it printed.
#[track_caller]
pub(super) fn shell(host: &Host, command: &str) -> String {
    host.run("bash", &["-ec", &with_path(command)])
}

/// Starts a command that keeps running, and waits until it listens.
pub(super) fn start(host: &Host, through: &[&str], command: &str) -> Process {
    let script = with_path(&command.replacen("peername ", "exec peername ", 1));
    let process = Process::start_through(host, through, "sh", &["-ec", &script]);
    process.wait_logged("listening");
    process
}

fn with_path(command: &str) -> String {
    let bin = Path::new(BINARY).parent().expect("a directory");
    format!("PATH={}:$PATH; export PATH; {command}", bin.display())
}
